/* How many parameters a model has: told as a size ("7B"), or counted from a config.json of Hugging Face. Called by `offload plan`.

   Counted, with h hidden_size, L num_hidden_layers, V vocab_size, i intermediate_size, d head_dim (else h / heads), as modeling_*.py of
   transformers makes its layers (what differs from type to type is in models.def):

     embeddings   V h, once more for the output unless tied; learned positions n h
     attention    h d heads + 2 h d kv_heads + d heads h; biases
                  latent (DeepSeek, arXiv 2405.04434): q by rank r_q, k and v by rank r_kv, positions beside them
     MLP          3 h i (gate, up, down) or 2 h i; biases
     experts      router h E, E MLPs of moe_intermediate_size, shared ones, a shared one's gate
     norms        one or two vectors of h each, of q and k heads d

   Active parameters are those that work on a token: with experts num_experts_per_tok of them. */
#ifndef OFFLOAD_PLAN_MODEL_H
#define OFFLOAD_PLAN_MODEL_H
#include <stdbool.h>
#include <stddef.h>

struct plan_model {
  char name[96];  /* "7B", or the file's path */
  char type[48];  /* model_type; "" for a size */
  char dtype[16]; /* torch_dtype or dtype, "bfloat16"; "": not told */
  bool like;      /* the type is not known: counted as if it were a Llama */
  double parameters, active;
};

/* `text`: 350M, 7B, 1.5B, 1T, a number; a config.json, or a directory that has one. False with a sentence. */
bool plan_model_read(const char *text, struct plan_model *, char *problem, size_t problem_bytes);
#endif
