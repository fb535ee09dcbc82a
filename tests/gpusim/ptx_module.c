/* Indexes one PTX text: names of its functions with their parameters, its variables, which get
   their memory here. Bodies are stepped over and decoded when an entry that reaches them is
   launched. Called by image.c; the readers of declarations also by ptx_decode.c. A module doesn't
   change once it is parsed. */
#include "ptx.h"
#include <stdlib.h>
#include <string.h>

static uint32_t hash(struct ptx_word word) {
  uint32_t value = 5381;
  for (size_t i = 0; i < word.length; i++)
    value = value * 33 + (unsigned char)word.text[i];
  return value % PTX_BUCKETS;
}

struct ptx_function *ptx_function_named(struct ptx_module *module, struct ptx_word name) {
  for (struct ptx_function *f = module->buckets[hash(name)]; f; f = f->hash_next)
    if (ptx_word_is(name, f->name))
      return f;
  return NULL;
}

static struct ptx_function *function_add(struct ptx_module *module, struct ptx_word name) {
  struct ptx_function *function = calloc(1, sizeof *function);
  function->name = strndup(name.text, name.length);
  function->module = module;
  function->next = module->functions;
  module->functions = function;
  function->hash_next = module->buckets[hash(name)];
  module->buckets[hash(name)] = function;
  return function;
}

static void shared_variable(struct ptx_module *module, const struct ptx_variable *variable) {
  struct ptx_symbol *symbol = ptx_symbol_add(&module->symbols, variable->name, PTX_VARIABLE);
  symbol->space = PTX_SHARED;
  symbol->dynamic = variable->unsized;
  symbol->bytes = variable->bytes;
  if (variable->unsized) {
    if (variable->alignment > module->dynamic_alignment)
      module->dynamic_alignment = (uint32_t)variable->alignment;
    return;
  }
  symbol->at = ptx_align(module->shared_bytes, variable->alignment);
  module->shared_bytes = (uint32_t)(symbol->at + variable->bytes);
}

static void global_variable(struct ptx_parser *p, const struct ptx_variable *variable,
                            enum ptx_space space) {
  struct ptx_module *module = p->module;
  size_t bytes = variable->bytes ? variable->bytes : 1;
  struct gpusim_global *global = calloc(1, sizeof *global);
  global->name = strndup(variable->name.text, variable->name.length);
  global->bytes = variable->bytes;
  global->address = gpusim_memory_static(bytes, variable->alignment);
  global->next = module->globals;
  module->globals = global;
  if (!global->address) {
    ptx_error(p, "no device memory for the %zu bytes of %s", bytes, global->name);
    return;
  }
  uint8_t *initial = calloc(1, bytes);
  if (ptx_eat(p, '='))
    ptx_initializer_read(p, variable, initial);
  memcpy(gpusim_backing(global->address), initial, bytes);
  free(initial);
  struct ptx_symbol *symbol = ptx_symbol_add(&module->symbols, variable->name, PTX_VARIABLE);
  symbol->space = (uint8_t)space;
  symbol->at = global->address;
  symbol->bytes = variable->bytes;
}

static void variables(struct ptx_parser *p, enum ptx_space space, bool is_extern) {
  do {
    struct ptx_variable variable;
    ptx_variable_read(p, &variable);
    if (p->failed)
      return;
    if (space == PTX_SHARED)
      shared_variable(p->module, &variable);
    else if (!is_extern)
      global_variable(p, &variable, space);
  } while (ptx_eat(p, ','));
  if (!ptx_eat(p, ';'))
    ptx_error(p, "; is expected after a variable");
}

static void parameters(struct ptx_parser *p, struct ptx_function *function) {
  if (!ptx_eat(p, '('))
    return;
  while (!ptx_eat(p, ')') && !p->failed) {
    struct ptx_word word = ptx_word_read(p);
    struct ptx_variable variable;
    if (!ptx_word_is(word, ".param")) {
      ptx_error(p, "parameter of the form '%.*s'", (int)word.length, word.text);
      return;
    }
    ptx_variable_read(p, &variable);
    uint32_t capacity = (uint32_t)function->parameter_capacity;
    function->parameters = ptx_grow(function->parameters, (uint32_t)function->parameter_count,
                                    &capacity, sizeof *function->parameters);
    function->parameter_capacity = (int)capacity;
    uint32_t offset = (uint32_t)ptx_align(function->parameter_bytes, variable.alignment);
    function->parameters[function->parameter_count++] =
        (struct gpusim_parameter){offset, (uint32_t)variable.bytes};
    function->parameter_bytes = offset + (uint32_t)variable.bytes;
    ptx_eat(p, ',');
  }
}

static void refuse(struct ptx_function *function, struct ptx_word directive) {
  if (!function->refused)
    function->refused = strndup(directive.text, directive.length);
}

/* .maxntid and the like, between a function's parameters and its body. */
static void directives(struct ptx_parser *p, struct ptx_function *function) {
  for (ptx_space_skip(p); *p->at == '.' && !p->failed; ptx_space_skip(p)) {
    struct ptx_word word = ptx_word_read(p);
    if (ptx_word_is(word, ".noreturn") || ptx_word_is(word, ".noinline"))
      continue;
    if (ptx_word_is(word, ".pragma")) {
      ptx_skip_past(p, ';');
      continue;
    }
    uint32_t values[3] = {1, 1, 1};
    int count = 0;
    for (ptx_space_skip(p); *p->at >= '0' && *p->at <= '9' && count < 3; ptx_space_skip(p)) {
      values[count++] = (uint32_t)ptx_integer_read(p);
      ptx_eat(p, ',');
    }
    if (ptx_word_is(word, ".maxntid"))
      function->max_threads = values[0] * values[1] * values[2];
    else if (ptx_word_is(word, ".reqntid"))
      memcpy(function->required_block, values, sizeof values);
    else if (!ptx_word_is(word, ".minnctapersm") && !ptx_word_is(word, ".maxnctapersm") &&
             !ptx_word_is(word, ".maxnreg") && !ptx_word_is(word, ".maxclusterrank"))
      refuse(function, word);
  }
}

/* A function's own shared variables stand in its body, one a line; their size belongs to its
   attributes. */
static void shared_line(struct ptx_parser *p, struct ptx_function *function) {
  struct ptx_parser line = *p;
  char discard[128];
  line.error = discard;
  line.error_bytes = sizeof discard;
  if (!ptx_word_is(ptx_word_read(&line), ".shared"))
    return;
  do {
    struct ptx_variable variable;
    ptx_variable_read(&line, &variable);
    if (line.failed)
      return;
    size_t at = ptx_align(function->static_shared_bytes, variable.alignment);
    function->static_shared_bytes = (uint32_t)(at + variable.bytes);
  } while (ptx_eat(&line, ','));
}

static void body_skip(struct ptx_parser *p, struct ptx_function *function) {
  for (int depth = 1; depth && !p->failed;) {
    p->at += strcspn(p->at, "{}\n/\"");
    switch (*p->at) {
    case 0:
      ptx_error(p, "the text ends inside %s", function->name);
      break;
    case '\n':
      p->line++;
      p->at++;
      p->at += strspn(p->at, " \t");
      if (p->at[0] == '.' && p->at[1] == 's')
        shared_line(p, function);
      break;
    case '/':
      if (p->at[1] == '/') /* not the end of the line: that is a case of its own */
        p->at += strcspn(p->at, "\n");
      else if (p->at[1] == '*')
        ptx_space_skip(p);
      else
        p->at++;
      break;
    case '"':
      p->at++;
      ptx_skip_past(p, '"');
      break;
    default:
      depth += *p->at++ == '{' ? 1 : -1;
    }
  }
}

static void function(struct ptx_parser *p, bool entry) {
  struct ptx_word result = {NULL, 0};
  uint32_t result_bytes = 0;
  ptx_space_skip(p);
  if (*p->at == '(') {
    struct ptx_function returned = {0};
    result.text = p->at;
    parameters(p, &returned);
    result.length = (size_t)(p->at - result.text);
    result_bytes = returned.parameter_bytes;
    free(returned.parameters);
  }
  struct ptx_word name = ptx_word_read(p);
  if (!name.length) {
    ptx_error(p, "a function's name is expected");
    return;
  }
  struct ptx_function *f = ptx_function_named(p->module, name);
  if (!f)
    f = function_add(p->module, name);
  if (f->has_body) {
    ptx_error(p, "%.200s has two bodies", f->name);
    return;
  }
  f->entry = entry;
  f->text = p->at;
  f->line = p->line;
  f->result_text = result;
  f->result_bytes = result_bytes;
  f->parameter_count = 0;
  f->parameter_bytes = 0;
  f->static_shared_bytes = (uint32_t)ptx_align(p->module->shared_bytes, 16);
  parameters(p, f);
  directives(p, f);
  if (ptx_eat(p, ';'))
    return;
  if (!ptx_eat(p, '{')) {
    ptx_error(p, "the body of %.200s is expected", f->name);
    return;
  }
  f->has_body = true;
  body_skip(p, f);
}

static void top_level(struct ptx_parser *p) {
  bool is_extern = false;
  for (;;) {
    struct ptx_word word = ptx_word_read(p);
    if (p->failed || (!word.length && !*p->at))
      return;
    if (ptx_word_is(word, ".extern")) {
      is_extern = true;
      continue;
    }
    if (ptx_word_is(word, ".visible") || ptx_word_is(word, ".weak") || ptx_word_is(word, ".common"))
      continue;
    if (ptx_word_is(word, ".version") || ptx_word_is(word, ".file")) {
      p->at += strcspn(p->at, "\n");
    } else if (ptx_word_is(word, ".target")) {
      struct ptx_word target = ptx_word_read(p);
      if (target.length > 3 && !strncmp(target.text, "sm_", 3))
        p->module->architecture = (uint32_t)strtoul(target.text + 3, NULL, 10);
      p->at += strcspn(p->at, "\n");
    } else if (ptx_word_is(word, ".address_size")) {
      if (ptx_integer_read(p) != 64)
        ptx_error(p, "only .address_size 64 can be run");
    } else if (ptx_word_is(word, ".alias")) {
      ptx_skip_past(p, ';'); /* a call by the other name is one of a function without a body */
    } else if (ptx_word_is(word, ".section")) {
      ptx_skip_past(p, '}');
    } else if (ptx_word_is(word, ".entry") || ptx_word_is(word, ".func")) {
      function(p, ptx_word_is(word, ".entry"));
    } else if (ptx_word_is(word, ".global")) {
      variables(p, PTX_GLOBAL, is_extern);
    } else if (ptx_word_is(word, ".const")) {
      variables(p, PTX_CONST, is_extern);
    } else if (ptx_word_is(word, ".shared")) {
      variables(p, PTX_SHARED, is_extern);
    } else {
      ptx_error(p, "unknown directive '%.*s'", word.length ? (int)word.length : 20, word.text);
    }
    is_extern = false;
  }
}

struct ptx_module *ptx_module_parse(char *code, char *error, size_t error_bytes) {
  struct ptx_module *module = calloc(1, sizeof *module);
  struct ptx_parser parser = {
      .module = module, .at = code, .line = 1, .error = error, .error_bytes = error_bytes};
  module->text = code;
  module->dynamic_alignment = 16;
  struct ptx_parser probe = parser;
  if (!ptx_word_is(ptx_word_read(&probe), ".version"))
    ptx_error(&parser, "PTX begins with .version");
  else
    top_level(&parser);
  if (!parser.failed)
    return module;
  ptx_module_free(module);
  return NULL;
}

void ptx_module_free(struct ptx_module *module) {
  if (!module)
    return;
  for (struct ptx_function *f = module->functions, *next; f; f = next) {
    next = f->next;
    ptx_program_free(f->program);
    free(f->parameters);
    free(f->refused);
    free(f->name);
    free(f);
  }
  for (struct gpusim_global *g = module->globals, *next; g; g = next) {
    next = g->next;
    if (g->address)
      gpusim_memory_static_free(g->address);
    free(g->name);
    free(g);
  }
  ptx_symbols_drop(&module->symbols, 0);
  free(module->symbols.items);
  free(module->text);
  free(module);
}
