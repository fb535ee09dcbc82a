/* A plan as JSON on stdout: the same figures as the table has, unrounded. libjansson writes it. */
#include "plan.h"
#include <jansson.h>
#include <stdio.h>

static json_t *bytes_of(const struct plan_request *request, const struct plan_bytes *bytes) {
  json_t *object = json_pack("{s:f, s:f, s:f, s:f}", "parameters", bytes->parameters, "gradients",
                             bytes->gradients, "state", bytes->state, "staging", bytes->staging);
  const bool known = request->device_bytes > 0;
  json_object_set_new(object, "left", known ? json_real(bytes->left) : json_null());
  json_object_set_new(object, "fits", known ? json_boolean(bytes->fits) : json_null());
  return object;
}

static json_t *way_of(const struct plan *plan, enum cost_way way) {
  const struct cost_of_way *of = &plan->cost.ways[way];
  json_t *object = json_pack("{s:b}", "possible", of->possible), *needs = json_object();
  if (!of->possible) {
    json_decref(needs);
    return object;
  }
  for (int k = 0; k < COST_RESOURCES; k++)
    json_object_set_new(needs, cost_resource_name((enum cost_resource)k), json_real(of->needs[k]));
  const double share = plan_share(plan, way);
  json_object_set_new(object, "seconds", json_real(of->seconds));
  json_object_set_new(object, "exposed", json_real(of->exposed));
  json_object_set_new(object, "hidden", json_real(of->hidden));
  json_object_set_new(object, "longer", share >= 0 ? json_real(share) : json_null());
  json_object_set_new(object, "bound", json_string(cost_resource_name(of->bound)));
  json_object_set_new(object, "needs", needs);
  return object;
}

bool plan_json(const struct plan_request *request, const struct plan *plan, const char *machine) {
  json_t *ways = json_object(), *advice = json_array();
  for (int way = 0; way < COST_WAYS; way++)
    json_object_set_new(ways, cost_way_name((enum cost_way)way), way_of(plan, (enum cost_way)way));
  for (size_t i = 0; i < plan->advice_count; i++)
    json_array_append_new(advice,
                          json_pack("{s:s, s:s}", "kind", advice_kind_name(plan->advice[i].kind),
                                    "text", plan->advice[i].text));
  json_t *root =
      json_pack("{s:{s:s, s:s, s:b, s:f, s:f}, s:s, s:s, s:s, s:i, s:s, s:s, s:f, s:f}", "model",
                "name", request->model.name, "type", request->model.type, "counted_as_llama",
                request->model.like, "parameters", request->model.parameters, "active",
                request->model.active, "optimizer", request->optimizer, "dtype", request->dtype,
                "shard", plan_shard_name(request->shard), "gpus", (int)request->gpus, "machine",
                machine, "rates_source", rates_source_name(request->rates.source), "tokens",
                request->tokens, "target", request->target);
  json_object_set_new(json_object_get(root, "model"), "dtype",
                      *request->model.dtype ? json_string(request->model.dtype) : json_null());
  json_object_set_new(root, "moves", json_boolean(plan->moves));
  json_object_set_new(root, "device_bytes",
                      request->device_bytes > 0 ? json_real(request->device_bytes) : json_null());
  json_object_set_new(root, "without", bytes_of(request, &plan->without));
  json_object_set_new(root, "with", bytes_of(request, &plan->with));
  json_object_set_new(root, "host_bytes", json_real(plan->host));
  json_object_set_new(root, "drive_bytes", json_real(plan->drives));
  json_object_set_new(root, "node",
                      json_pack("{s:f, s:f}", "host_bytes", plan->host * request->gpus,
                                "drive_bytes", plan->drives * request->gpus));
  json_object_set_new(root, "elements", json_real(plan->elements));
  json_object_set_new(root, "compute_seconds",
                      plan->compute > 0 ? json_real(plan->compute) : json_null());
  json_object_set_new(root, "best",
                      plan->moves ? json_string(cost_way_name(plan->cost.best)) : json_null());
  json_object_set_new(root, "ways", ways);
  json_object_set_new(root, "advice", advice);
  const bool good = json_dumpf(root, stdout, JSON_INDENT(2)) == 0 && putchar('\n') != EOF;
  json_decref(root);
  return good;
}
