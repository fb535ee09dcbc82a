/* See report_node.h. What isn't known is null, or an empty list. */
#include "report_node.h"
#include "leaf.h"
#include "scratch.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static struct report_node told;

void report_node(const struct report_node *node) {
  if (!leaf_lock(&lock))
    return;
  told = *node;
  pthread_mutex_unlock(&lock);
}

void report_node_forget(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  told.count = 0;
  told.registered = false;
  told.sharers = told.missing = told.replicas = 0;
}

/* The first step may be too early to tell. */
bool report_node_declines(const struct registry_entry *rank) {
  return rank->state.steps >= 2 && !rank->state.moved_bytes && !rank->state.drive_bytes;
}

static void write_rank(struct json *json, const struct registry_entry *rank, bool live) {
  const struct registry_state *state = &rank->state;
  json_begin(json, NULL, '{');
  json_number(json, "pid", (uint64_t)rank->pid);
  json_number_or_null(json, "local_rank", rank->local_ranks, rank->local_rank);
  json_number_or_null(json, "device", rank->device >= 0, (uint64_t)rank->device);
  json_string(json, "gpu", *rank->gpu ? rank->gpu : NULL);
  json_string(json, "program", rank->program);
  json_boolean(json, "live", live);
  json_number(json, "steps", state->steps);
  json_number(json, "host_bytes", rank->claim.host_bytes);
  json_number(json, "staging_bytes", rank->claim.staging_bytes);
  json_number(json, "drive_bytes", rank->claim.drive_bytes);
  json_number(json, "threads", rank->claim.threads);
  json_number(json, "state_bytes", state->state_bytes);
  json_number(json, "moved_bytes", state->moved_bytes);
  json_number(json, "budget_bytes", state->budget_bytes);
  json_string(json, "mode", state->mode);
  json_string(json, "way", state->way);
  json_boolean(json, "declines", report_node_declines(rank));
  json_string(json, "note", state->note);
  json_end(json, '}');
}

void report_node_json(struct json *json, const struct config *config) {
  struct report_node *node = scratch_take(sizeof *node);
  if (!node) {
    json_string(json, "node", NULL);
    return;
  }
  if (leaf_lock(&lock)) {
    *node = told;
    pthread_mutex_unlock(&lock);
  }
  json_begin(json, "node", '{');
  json_string(json, "launcher", config->ranks.launcher);
  json_number_or_null(json, "local_rank", config->ranks.local_rank >= 0,
                      (uint64_t)config->ranks.local_rank);
  json_number_or_null(json, "local_ranks", config->ranks.local_ranks, config->ranks.local_ranks);
  json_boolean(json, "registered", node->registered);
  json_string(json, "problem", node->problem);
  json_number(json, "sharers", node->sharers);
  json_number(json, "missing", node->missing);
  json_number_or_null(json, "machine_bytes", node->sharers && node->machine_bytes != UINT64_MAX,
                      node->machine_bytes);
  json_number_or_null(json, "group_bytes", node->sharers && node->group_bytes != UINT64_MAX,
                      node->group_bytes);
  json_number(json, "claimed_bytes", node->claimed_bytes);
  json_number(json, "staging_bytes", node->staging_bytes);
  json_number(json, "threads", node->threads);
  json_number(json, "replicas", node->replicas);
  json_number(json, "replicated_bytes", node->replicated_bytes);
  json_begin(json, "ranks", '[');
  for (unsigned i = 0; i < node->count; i++)
    write_rank(json, &node->ranks[i], node->live[i]);
  json_end(json, ']');
  json_end(json, '}');
  scratch_drop(node, sizeof *node);
}
