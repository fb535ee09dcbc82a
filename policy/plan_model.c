/* See plan_model.h. libjansson reads the file. */
#include "plan_model.h"
#include "page_read.h"
#include "words.h"
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum bias { BIAS_NONE, BIAS_ALWAYS, BIAS_CONFIGURED };

static const struct kind {
  const char *type;
  int mlp_matrices;
  enum bias qkv_bias, out_bias, mlp_bias;
  int layer_norms, last_norms, head_norms, positions_beyond, tied;
} kinds[] = {
#define MODEL(type, matrices, qkv, out, mlp, layer, last, heads, positions, tied)                  \
  {#type,     matrices, (enum bias)(qkv), (enum bias)(out), (enum bias)(mlp), layer, last, heads,  \
   positions, tied},
#include "models.def"
#undef MODEL
};

struct reader {
  const json_t *config;
  const char *path;
  char *problem;
  size_t problem_bytes;
  bool failed;
};

static void __attribute__((format(printf, 2, 3)))
refuse(struct reader *r, const char *format, ...) {
  va_list arguments;
  if (r->failed)
    return;
  r->failed = true;
  va_start(arguments, format);
  vsnprintf(r->problem, r->problem_bytes, format, arguments);
  va_end(arguments);
}

/* The first of the names (up to three, for the same thing) that the file has. NULL: none, or null. */
static const json_t *find(const struct reader *r, const char *name, const char *second,
                          const char *third) {
  const char *const names[] = {name, second, third};
  for (size_t i = 0; i < 3; i++) {
    const json_t *value = names[i] ? json_object_get(r->config, names[i]) : NULL;
    if (value && !json_is_null(value))
      return value;
  }
  return NULL;
}

/* A count from `least` on, `otherwise` where it isn't there; `otherwise` below 0: it must be there. */
static double number(struct reader *r, const char *name, const char *second, const char *third,
                     double least, double otherwise) {
  const double most = 1e9;
  const json_t *value = find(r, name, second, third);
  if (!value && otherwise < 0)
    refuse(r,
           "%s has no %s: give a language model's config.json of Hugging Face, or a size such as "
           "7B",
           r->path, name);
  if (!value)
    return otherwise;
  const double found = json_is_integer(value) ? (double)json_integer_value(value) : -1;
  if (found < least || found > most)
    refuse(r, "%s: %s is no whole number from %.0f to 1e9", r->path, name, least);
  return found;
}

static bool boolean(const struct reader *r, const char *name, bool otherwise) {
  const json_t *value = json_object_get(r->config, name);
  return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

static bool has_bias(const struct reader *r, enum bias bias, const char *name) {
  return bias == BIAS_ALWAYS || (bias == BIAS_CONFIGURED && boolean(r, name, false));
}

/* What one layer's attention has. */
static double attention(struct reader *r, const struct kind *kind, double h) {
  const double heads = number(r, "num_attention_heads", "n_head", NULL, 1, -1);
  const double kv_heads = number(r, "num_key_value_heads", NULL, NULL, 1, heads);
  const double d = number(r, "head_dim", NULL, NULL, 1, heads > 0 ? floor(h / heads) : 1);
  const double kv_rank = number(r, "kv_lora_rank", NULL, NULL, 1, 0);
  const double bias = has_bias(r, kind->qkv_bias, "attention_bias");
  const double out_bias = has_bias(r, kind->out_bias, "attention_bias") ? h : 0;
  if (kv_rank <= 0)
    return h * d * (heads + 2 * kv_heads) + (bias > 0 ? d * (heads + 2 * kv_heads) : 0) +
           heads * d * h + out_bias + 2 * d * kind->head_norms;
  const double q_rank = number(r, "q_lora_rank", NULL, NULL, 1, 0);
  const double nope = number(r, "qk_nope_head_dim", NULL, NULL, 1, -1);
  const double rope = number(r, "qk_rope_head_dim", NULL, NULL, 1, -1);
  const double v = number(r, "v_head_dim", NULL, NULL, 1, -1);
  const double q =
      q_rank > 0 ? h * q_rank + q_rank + q_rank * heads * (nope + rope) : h * heads * (nope + rope);
  return q + h * (kv_rank + rope) + kv_rank + kv_rank * heads * (nope + v) + heads * v * h;
}

static double mlp(struct reader *r, const struct kind *kind, double h, double inner) {
  const double bias = has_bias(r, kind->mlp_bias, "mlp_bias");
  return kind->mlp_matrices * h * inner + (bias > 0 ? (kind->mlp_matrices - 1) * inner + h : 0);
}

/* Layers in which experts take the MLP's place. */
static double expert_layers(struct reader *r, double layers) {
  const json_t *dense = json_object_get(r->config, "mlp_only_layers");
  const double first = number(r, "first_k_dense_replace", NULL, NULL, 0, 0);
  const double every = number(r, "decoder_sparse_step", NULL, NULL, 1, 1);
  double count = 0;
  for (long layer = 0; layer < (long)layers; layer++) {
    bool sparse = (double)layer >= first && fmod((double)layer + 1, every) == 0;
    for (size_t i = 0; sparse && i < json_array_size(dense); i++)
      sparse = json_integer_value(json_array_get(dense, i)) != layer;
    count += sparse;
  }
  return count;
}

/* All layers' MLPs and experts; `active`: of these, what works on a token. */
static double all_mlps(struct reader *r, const struct kind *kind, double h, double layers,
                       double *active) {
  const double inner =
      number(r, "intermediate_size", "n_inner", "ffn_dim", 1, kind->mlp_matrices == 2 ? 4 * h : -1);
  const double experts = number(r, "num_local_experts", "num_experts", "n_routed_experts", 0, 0);
  if (experts < 1)
    return *active = layers * mlp(r, kind, h, inner);
  const double each = number(r, "moe_intermediate_size", NULL, NULL, 1, inner);
  const double chosen = number(r, "num_experts_per_tok", NULL, NULL, 1, -1);
  const double gated = number(r, "shared_expert_intermediate_size", NULL, NULL, 0, 0);
  const double common = h * experts +
                        number(r, "n_shared_experts", NULL, NULL, 0, 0) * mlp(r, kind, h, each) +
                        (gated > 0 ? mlp(r, kind, h, gated) + h : 0);
  const double sparse = expert_layers(r, layers);
  if (chosen > experts)
    refuse(r, "%s: num_experts_per_tok is more than the %.0f experts", r->path, experts);
  const double others = (layers - sparse) * mlp(r, kind, h, inner) + sparse * common;
  *active = others + sparse * chosen * mlp(r, kind, h, each);
  return others + sparse * experts * mlp(r, kind, h, each);
}

static const struct kind *kind_of(const char *type) {
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (!strcmp(kinds[i].type, type))
      return &kinds[i];
  return NULL;
}

static const char instead[] =
    "give a language model's config.json of Hugging Face, or a size such as 7B";

static void count(struct reader *r, struct plan_model *model) {
  const json_t *inner = json_object_get(r->config, "text_config"); /* of several modes */
  const char *dtype = json_string_value(find(r, "dtype", "torch_dtype", NULL));
  if (json_is_object(inner)) {
    r->config = inner;
    if (!dtype)
      dtype = json_string_value(find(r, "dtype", "torch_dtype", NULL));
  }
  words_plain(dtype ? dtype : "", model->dtype, sizeof model->dtype);
  const char *type = json_string_value(json_object_get(r->config, "model_type"));
  words_plain(type ? type : "", model->type, sizeof model->type);
  const struct kind *kind = kind_of(model->type);
  model->like = !kind;
  if (!kind)
    kind = &kinds[0];
  const double h = number(r, "hidden_size", "n_embd", "d_model", 1, -1);
  const double layers = number(r, "num_hidden_layers", "n_layer", "num_layers", 1, -1);
  const double layers_most = 1e5;
  if (layers > layers_most)
    refuse(r, "%s: num_hidden_layers is more than %.0f", r->path, layers_most);
  const double words = number(r, "vocab_size", NULL, NULL, 1, -1);
  double active_mlps = 0;
  const double mlps = r->failed ? 0 : all_mlps(r, kind, h, layers, &active_mlps);
  double fixed = words * h * (boolean(r, "tie_word_embeddings", kind->tied) ? 1 : 2) +
                 layers * (attention(r, kind, h) + kind->layer_norms * h) + kind->last_norms * h;
  if (kind->positions_beyond >= 0)
    fixed += h * (number(r, "max_position_embeddings", "n_positions", "n_ctx", 1, -1) +
                  kind->positions_beyond);
  model->parameters = fixed + mlps;
  model->active = fixed + active_mlps;
}

static bool read_config(const char *path, struct plan_model *model, char *problem,
                        size_t problem_bytes) {
  json_error_t error;
  json_t *root = view_load(path, 0, &error);
  struct reader reader = {root, path, problem, problem_bytes, false};
  if (!root && error.line > 0)
    refuse(&reader, "%s is no JSON: line %d: %s: %s", path, error.line, error.text, instead);
  else if (!root)
    refuse(&reader, "%s: %s: %s", path, error.text, instead);
  else if (!json_is_object(root))
    refuse(&reader, "%s has no JSON object: %s", path, instead);
  else
    count(&reader, model);
  json_decref(root);
  return !reader.failed;
}

/* A decimal number and a letter; false where it is something else. */
static bool read_size(const char *text, double *parameters) {
  static const char letters[] = "kmbt";
  const double least = 1e3, most = 1e15;
  char *end;
  if (!isdigit((unsigned char)*text) && *text != '.')
    return false;
  *parameters = strtod(text, &end);
  const char *letter = *end ? strchr(letters, tolower((unsigned char)*end)) : NULL;
  if (letter) {
    *parameters *= pow(1000, (double)(letter - letters + 1));
    end++;
  }
  return !*end && *parameters >= least && *parameters <= most;
}

bool plan_model_read(const char *text, struct plan_model *model, char *problem,
                     size_t problem_bytes) {
  struct stat status;
  char path[4096];
  *model = (struct plan_model){.like = false};
  words_plain(text, model->name, sizeof model->name);
  if (stat(text, &status)) {
    if (read_size(text, &model->parameters)) {
      model->active = model->parameters;
      return true;
    }
    snprintf(
        problem, problem_bytes,
        "'%.200s' is no size of a model (350M, 7B, 1.5B) and no config.json (%s): nothing is "
        "downloaded; give the path of its config.json, which Hugging Face has among the model's "
        "files, and a machine that loaded it in ~/.cache/huggingface/hub",
        text, strerror(errno));
    return false;
  }
  snprintf(path, sizeof path, S_ISDIR(status.st_mode) ? "%s/config.json" : "%s", text);
  return read_config(path, model, problem, problem_bytes);
}
