/* What an instruction computes, as a C expression of its operands x, y, z: unsigned integers of the
   operands' width, predicates 0 or 1. Called by ptx_native_emit.c. What has none here stays with
   the interpreter: accesses, control, and arithmetic that isn't worth it. Floats come from the list
   that the interpreter uses, ptx_float.def. */
#include "ptx_exec.h"
#include "ptx_native.h"

const char ptx_native_prelude[] =
    "#include <stdint.h>\n"
    "#include <string.h>\n"
    "#define I static inline __attribute__((always_inline))\n"
    "I float f32_of(uint32_t b) { float v; memcpy(&v, &b, 4); return v; }\n"
    "I uint32_t bits_of_f32(float v) { uint32_t b; memcpy(&b, &v, 4); return b; }\n"
    "I double f64_of(uint64_t b) { double v; memcpy(&v, &b, 8); return v; }\n"
    "I uint64_t bits_of_f64(double v) { uint64_t b; memcpy(&b, &v, 8); return b; }\n"
    "I uint32_t flushed(uint32_t b) { return b & 0x7f800000u ? b : b & 0x80000000u; }\n"
    "I uint32_t f32_out(float v) { uint32_t b = bits_of_f32(v);\n"
    "  return (b & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : b; }\n"
    "I uint32_t f32_flushed_out(float v) { uint32_t b = bits_of_f32(v);\n"
    "  return (b & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : flushed(b); }\n"
    "I uint64_t f64_is_nan(uint64_t b) { return 0 - (uint64_t)((b & ~(UINT64_C(1) << 63)) > "
    "UINT64_C(0x7ff0000000000000)); }\n"
    "I uint64_t f64_out(double v, uint64_t x, uint64_t y, uint64_t z) {\n"
    "  const uint64_t b = bits_of_f64(v), quiet = UINT64_C(1) << 51, nx = f64_is_nan(x), "
    "ny = f64_is_nan(y), nz = f64_is_nan(z), none = UINT64_C(0xfff8000000000000);\n"
    "  const uint64_t nan = (x & nx) | (~nx & ((y & ny) | (~ny & ((z & nz) | (~nz & none)))));\n"
    "  const uint64_t n = f64_is_nan(b);\n"
    "  return (b & ~n) | ((nan | quiet) & n); }\n";

static const struct {
  const char *name, *f32, *f64;
} floats[] = {
#define F32(name, EXPRESSION) {#name, #EXPRESSION, NULL},
#define F64(name, EXPRESSION) {#name, NULL, #EXPRESSION},
#include "ptx_float.def"
#undef F32
#undef F64
};

static const char *float_name(const struct ptx_instruction *i) {
  switch (i->opcode) {
  case PTX_OP_add:
    return "add";
  case PTX_OP_sub:
    return "sub";
  case PTX_OP_mul:
    return "mul";
  case PTX_OP_mad:
  case PTX_OP_fma:
    return i->action == PTX_FUSED_MINUS_ADDEND    ? "fma_minus_addend"
           : i->action == PTX_FUSED_MINUS_PRODUCT ? "fma_minus_product"
                                                  : "fma";
  case PTX_OP_div:
    return "div";
  case PTX_OP_sqrt:
    return "sqrt";
  case PTX_OP_rcp:
    return "rcp";
  default:
    return NULL;
  }
}

/* The expression of ptx_float.def, its operands' bits made values. */
static bool of_floats(const struct ptx_instruction *i, FILE *out) {
  const bool f32 = i->type == PTX_f32, ftz = i->flags & PTX_M_FTZ;
  const char *name = float_name(i);
  if (i->opcode == PTX_OP_neg || i->opcode == PTX_OP_abs) {
    const char *sign = i->opcode == PTX_OP_neg ? "^" : "& ~";
    if (!f32)
      fprintf(out, "x %s(UINT64_C(1) << 63)", sign);
    else
      fprintf(out, "f32_out(f32_of(%s(x) %s0x80000000u))", ftz ? "flushed" : "", sign);
    return true;
  }
  if (!name || ptx_is_approximate(i) || i->rounding > PTX_RN || i->flags & PTX_M_SAT ||
      (!f32 && ftz))
    return false;
  const char *type = f32 ? "float" : "double", *in = f32 ? (ftz ? "flushed" : "") : "";
  const char *of = f32 ? "f32_of" : "f64_of";
  fprintf(out, "({ const %s x_ = %s(%s(x))", type, of, in);
  if (i->operands > 2)
    fprintf(out, ", y_ = %s(%s(y))", of, in);
  if (i->operands > 3)
    fprintf(out, ", z_ = %s(%s(z))", of, in);
  fputs("; ", out);
  fputs(f32 ? (ftz ? "f32_flushed_out(" : "f32_out(") : "f64_out(", out);
  for (size_t k = 0; k < sizeof floats / sizeof *floats; k++) {
    const char *body = f32 ? floats[k].f32 : floats[k].f64;
    if (!body || strcmp(floats[k].name, name) != 0)
      continue;
    for (; *body; body++) { /* x, y and z stand alone: no other name has them at its end */
      bool alone = strchr("xyz", *body) && !(body[1] == '_' || (body[1] >= 'a' && body[1] <= 'z'));
      fprintf(out, alone ? "%c_" : "%c", *body);
    }
  }
  if (!f32)
    fprintf(out, ", x, %s, %s", i->operands > 2 ? "y" : "x", i->operands > 3 ? "z" : "x");
  fputs("); })", out);
  return true;
}

static bool of_integers(const struct ptx_instruction *i, FILE *out) {
  const uint32_t bytes = ptx_type_bytes[i->type], bits = bytes * 8;
  const bool is_signed = ptx_type_class[i->type] == PTX_SIGNED;
  if (i->flags & (PTX_M_SAT | PTX_M_CC) || bytes < 2)
    return false;
  switch (i->opcode) {
  case PTX_OP_add:
    fputs("x + y", out);
    return true;
  case PTX_OP_sub:
    fputs("x - y", out);
    return true;
  case PTX_OP_neg:
    fputs("0 - x", out);
    return is_signed;
  case PTX_OP_min:
  case PTX_OP_max:
    fprintf(out, "%s%u_t)x %c %s%u_t)y ? x : y", is_signed ? "(int" : "(uint", bits,
            i->opcode == PTX_OP_min ? '<' : '>', is_signed ? "(int" : "(uint", bits);
    return true;
  case PTX_OP_mul:
  case PTX_OP_mad: {
    const char *plus = i->opcode == PTX_OP_mad ? " + z" : "";
    if (i->flags & PTX_M_LO)
      fprintf(out, "(uint64_t)x * y%s", plus);
    else if (i->flags & PTX_M_WIDE && bytes == 4)
      fprintf(out,
              is_signed ? "(uint64_t)((int64_t)(int32_t)x * (int32_t)y)%s" : "(uint64_t)x * y%s",
              plus);
    else
      return false;
    return true;
  }
  default:
    return false;
  }
}

static bool of_bits(const struct ptx_instruction *i, FILE *out) {
  const uint32_t bytes = ptx_type_bytes[i->type], bits = bytes * 8;
  const bool is_signed = ptx_type_class[i->type] == PTX_SIGNED;
  switch (i->opcode) {
  case PTX_OP_and:
    fputs("x & y", out);
    return true;
  case PTX_OP_or:
    fputs("x | y", out);
    return true;
  case PTX_OP_xor:
    fputs("x ^ y", out);
    return true;
  case PTX_OP_not:
    fputs(i->type == PTX_pred ? "x ^ 1" : "~x", out);
    return true;
  case PTX_OP_shl:
    fprintf(out, "y < %u ? x << (y & %u) : 0", bits, bits - 1);
    return bytes >= 4;
  case PTX_OP_shr:
    if (is_signed)
      fprintf(out, "(int%u_t)x >> (y < %u ? y : %u)", bits, bits, bits - 1);
    else
      fprintf(out, "y < %u ? x >> (y & %u) : 0", bits, bits - 1);
    return bytes >= 4;
  case PTX_OP_mov:
    fputs("x", out);
    return !i->action && i->operand[1] != PTX_NONE;
  case PTX_OP_selp:
    fputs("z ? x : y", out);
    return bytes >= 2 && !(i->flags & PTX_M_NEGATE);
  default:
    return false;
  }
}

static bool of_comparison(const struct ptx_instruction *i, FILE *out) {
  static const char *const signs[] = {[PTX_EQ] = "==", [PTX_NE] = "!=", [PTX_LT] = "<",
                                      [PTX_LE] = "<=", [PTX_GT] = ">",  [PTX_GE] = ">="};
  static const uint8_t opposite[] = {[PTX_EQU] = PTX_NE, [PTX_NEU] = PTX_EQ, [PTX_LTU] = PTX_GE,
                                     [PTX_LEU] = PTX_GT, [PTX_GTU] = PTX_LE, [PTX_GEU] = PTX_LT};
  const bool f32 = i->type == PTX_f32, f64 = i->type == PTX_f64;
  const uint32_t bits = ptx_type_bytes[i->type] * 8u;
  if (i->combine || i->operand[5] != PTX_NONE || i->operand[0] == PTX_NONE || bits < 16)
    return false;
  if (!f32 && !f64) {
    const char *sign = ptx_type_class[i->type] == PTX_SIGNED ? "int" : "uint";
    if (ptx_type_class[i->type] == PTX_FLOAT || i->compare > PTX_GE)
      return false;
    fprintf(out, "(%s%u_t)x %s (%s%u_t)y", sign, bits, signs[i->compare], sign, bits);
    return true;
  }
  const char *of = f64 ? "f64_of" : "f32_of", *in = i->flags & PTX_M_FTZ ? "flushed" : "";
  if (i->compare == PTX_NUM || i->compare == PTX_NAN || i->compare == PTX_NE ||
      i->compare == PTX_EQU)
    return false; /* two comparisons each: rare */
  if (i->compare <= PTX_GE)
    fprintf(out, "%s(%s(x)) %s %s(%s(y))", of, in, signs[i->compare], of, in);
  else
    fprintf(out, "!(%s(%s(x)) %s %s(%s(y)))", of, in, signs[opposite[i->compare]], of, in);
  return true;
}

static bool of_conversion(const struct ptx_instruction *i, FILE *out) {
  const uint32_t to = ptx_type_bytes[i->type], from = ptx_type_bytes[i->type2];
  const bool to_float = ptx_type_class[i->type] == PTX_FLOAT;
  const bool from_float = ptx_type_class[i->type2] == PTX_FLOAT;
  if (i->flags & (PTX_M_SAT | PTX_M_FTZ | PTX_M_TO_INTEGER) || i->rounding > PTX_RN ||
      i->operands != 2 || !to || !from)
    return false;
  if (!to_float && !from_float) { /* extended as the source, cut, extended as the result */
    fprintf(out, "(uint64_t)(%sint%u_t)(%sint%u_t)x",
            ptx_type_class[i->type] == PTX_SIGNED ? "" : "u", to * 8,
            ptx_type_class[i->type2] == PTX_SIGNED ? "" : "u", from * 8);
    return true;
  }
  if (i->bytes != to || i->address_bytes != from)
    return false;
  if (i->type == PTX_f64 && i->type2 == PTX_f32)
    fputs("bits_of_f64((double)f32_of(x))", out);
  else if (i->type == PTX_f32 && i->type2 == PTX_f64)
    fputs("f32_out((float)f64_of(x))", out);
  else if (i->type == PTX_f32 && i->type2 == PTX_s32)
    fputs("bits_of_f32((float)(int32_t)x)", out);
  else
    return false;
  return true;
}

bool ptx_native_expression(const struct ptx_instruction *i, FILE *out) {
  if (i->kind != PTX_PLAIN || !i->run || i->operand[0] == PTX_NONE)
    return false;
  switch (i->opcode) {
  case PTX_OP_cvt:
    return of_conversion(i, out);
  case PTX_OP_setp:
    return of_comparison(i, out);
  case PTX_OP_and:
  case PTX_OP_or:
  case PTX_OP_xor:
  case PTX_OP_not:
  case PTX_OP_shl:
  case PTX_OP_shr:
  case PTX_OP_mov:
  case PTX_OP_selp:
    return of_bits(i, out);
  default:
    if (i->type == PTX_f32 || i->type == PTX_f64)
      return of_floats(i, out);
    return ptx_type_class[i->type] != PTX_FLOAT && of_integers(i, out);
  }
}
