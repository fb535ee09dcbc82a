/* How fast running work goes. Whatever uses a resource shares it evenly with the others, none faster
   than its own limit; either direction of the link is slower while the other runs. Rates are
   constant between two events, at which some part of some work ends. */
#include "tests/gpusim/clock_replay.h"
#include <math.h>
#include <string.h>

/* Less than so many bytes, instructions or ns is rounding. */
static const double little = 1e-3;

static double start_of(const struct replay *r, enum clock_kind kind) {
  switch (kind) {
  case CLOCK_KERNEL:
  case CLOCK_FILL:
    return r->profile->launch * r->terms->starts * 1e3;
  case CLOCK_UP_COPY:
  case CLOCK_DOWN_COPY:
  case CLOCK_DEVICE_COPY:
  case CLOCK_PEER_COPY:
    return r->profile->copy * r->terms->starts * 1e3;
  default:
    return 0;
  }
}

/* A kernel's own limits on the link; pageable memory; what passes over the link also passes through
 * host memory, no faster than there. */
static void set_limits(const struct replay *r, struct running *run, bool pageable) {
  const struct clock_profile *p = r->profile;
  for (int i = 0; i < CLOCK_RESOURCES; i++)
    run->limit[i] = INFINITY;
  if (run->kind == CLOCK_KERNEL) {
    run->limit[CLOCK_UP] = p->sm_read;
    run->limit[CLOCK_DOWN] = p->sm_write;
  }
  if (pageable)
    run->limit[CLOCK_UP] = run->limit[CLOCK_DOWN] = run->limit[CLOCK_DRAM] = p->pageable;
  if (run->left[CLOCK_UP] > 0 || run->left[CLOCK_DOWN] > 0) {
    run->left[CLOCK_DRAM] += run->left[CLOCK_UP] + run->left[CLOCK_DOWN];
    run->limit[CLOCK_DRAM] =
        (run->left[CLOCK_UP] > 0 ? p->up : 0) + (run->left[CLOCK_DOWN] > 0 ? p->down : 0);
  }
}

struct running *clock_run(struct replay *r, enum clock_kind kind, int device, const double *amount,
                          bool pageable) {
  r->running = clock_room(r->running, r->running_count, &r->running_capacity, sizeof *r->running);
  struct running *run = &r->running[r->running_count++];
  *run = (struct running){.entry = NONE, .work = NONE, .kind = kind, .device = device};
  run->lead = start_of(r, kind);
  memcpy(run->left, amount, sizeof run->left);
  set_limits(r, run, pageable);
  return run;
}

static double capacity_of(const struct clock_profile *p, enum clock_resource resource,
                          bool both_directions) {
  switch (resource) {
  case CLOCK_HBM:
    return p->hbm;
  case CLOCK_ISSUE:
    return p->fp32 * 1e3 / 2;
  case CLOCK_UP:
    return both_directions ? p->up_both : p->up;
  case CLOCK_DOWN:
    return both_directions ? p->down_both : p->down;
  case CLOCK_PEER:
    return p->peer;
  case CLOCK_DRAM:
    return p->dram / p->gpus;
  case CLOCK_DRIVE_READ:
    return p->drive_read;
  case CLOCK_DRIVE_WRITE:
    return p->drive_write;
  default:
    return INFINITY;
  }
}

static bool uses(const struct running *run, int device, int resource) {
  return run->device == device && run->lead <= 0 && run->left[resource] > 0;
}

static size_t users(const struct replay *r, int device, int resource) {
  size_t count = 0;
  for (size_t i = 0; i < r->running_count; i++)
    count += uses(&r->running[i], device, resource);
  return count;
}

/* Even shares; what one can't use for its limit goes to the others. */
static void share(struct replay *r, int device, int resource, double capacity) {
  size_t open = users(r, device, resource);
  for (size_t i = 0; i < r->running_count; i++)
    if (uses(&r->running[i], device, resource))
      r->running[i].rate[resource] = 0;
  for (bool limited = true; limited && open > 0;) {
    const double each = capacity / (double)open;
    limited = false;
    for (size_t i = 0; i < r->running_count; i++) {
      struct running *run = &r->running[i];
      if (uses(run, device, resource) && run->rate[resource] <= 0 && run->limit[resource] < each) {
        run->rate[resource] = run->limit[resource];
        capacity -= run->limit[resource];
        open--;
        limited = true;
      }
    }
  }
  for (size_t i = 0; i < r->running_count; i++)
    if (uses(&r->running[i], device, resource) && r->running[i].rate[resource] <= 0)
      r->running[i].rate[resource] = capacity / (double)open;
}

static void set_rates(struct replay *r) {
  for (int d = 0; d < gpusim_settings.devices; d++) {
    const bool both = users(r, d, CLOCK_UP) > 0 && users(r, d, CLOCK_DOWN) > 0;
    for (int k = 0; k < CLOCK_TIME; k++)
      share(r, d, k, capacity_of(r->profile, (enum clock_resource)k, both));
  }
  for (size_t i = 0; i < r->running_count; i++)
    r->running[i].rate[CLOCK_TIME] = 1;
}

double clock_until_next(struct replay *r) {
  double least = -1;
  set_rates(r);
  for (size_t i = 0; i < r->running_count; i++) {
    const struct running *run = &r->running[i];
    double next = run->lead > 0 ? run->lead : INFINITY;
    for (int k = 0; k < CLOCK_RESOURCES && run->lead <= 0; k++)
      if (run->left[k] > 0 && run->left[k] / run->rate[k] < next)
        next = run->left[k] / run->rate[k];
    if (isinf(next)) /* nothing left */
      next = 0;
    if (least < 0 || next < least)
      least = next;
  }
  if (!r->host_works && r->cursor < r->log->count && r->host_free > r->now &&
      (least < 0 || r->host_free - r->now < least))
    least = r->host_free - r->now;
  return least;
}

/* Whether what uses a resource goes no faster for it: there is no more of it, or of the link not for the
 * multiprocessors or the CPU that copies. */
static bool used_up(const struct replay *r, int device, enum clock_resource resource) {
  const double nearly = 0.999;
  const bool link = resource == CLOCK_UP || resource == CLOCK_DOWN;
  const bool both = users(r, device, CLOCK_UP) > 0 && users(r, device, CLOCK_DOWN) > 0;
  double rate = 0;
  for (size_t i = 0; i < r->running_count; i++)
    if (uses(&r->running[i], device, (int)resource)) {
      if (link && r->running[i].rate[resource] >= r->running[i].limit[resource] * nearly)
        return true;
      rate += r->running[i].rate[resource];
    }
  return rate >= capacity_of(r->profile, resource, both) * nearly;
}

static void account_resources(struct replay *r, int device, double ns) {
  for (int k = 0; k < CLOCK_TIME; k++) {
    r->result->sums.full_ns[k] += used_up(r, device, (enum clock_resource)k) ? ns : 0;
    for (size_t i = 0; i < r->running_count; i++)
      if (uses(&r->running[i], device, k))
        r->result->sums.amount[k] += r->running[i].rate[k] * ns;
  }
}

static void account(struct replay *r, double ns) {
  struct clock_sums *result = &r->result->sums;
  for (int d = 0; d < gpusim_settings.devices; d++) {
    bool kernel = false, copy = false, host = false, given = false, other = false;
    for (size_t i = 0; i < r->running_count; i++) {
      const struct running *run = &r->running[i];
      if (run->device != d)
        continue;
      kernel |= run->kind == CLOCK_KERNEL;
      copy |= run->kind == CLOCK_UP_COPY || run->kind == CLOCK_DOWN_COPY;
      host |= run->kind == CLOCK_WORKER || run->kind == CLOCK_HOST_FUNCTION ||
              run->kind == CLOCK_HOST_WORK;
      given |= run->given;
      other |= !run->given;
    }
    account_resources(r, d, ns);
    result->given_ns += given ? ns : 0;
    result->other_ns += other ? ns : 0;
    result->hidden_ns += given && other ? ns : 0;
    result->kernel_ns += kernel ? ns : 0;
    result->copy_ns += copy ? ns : 0;
    result->host_ns += host ? ns : 0;
    result->copy_exposed_ns += copy && !kernel ? ns : 0;
    result->host_exposed_ns += host && !kernel ? ns : 0;
    result->exposed_ns += (copy || host) && !kernel ? ns : 0;
  }
}

void clock_pass(struct replay *r, double ns, void (*end)(struct replay *, const struct running *)) {
  account(r, ns);
  r->now += ns;
  size_t kept = 0;
  for (size_t i = 0; i < r->running_count; i++) {
    struct running *run = &r->running[i];
    bool over = true;
    if (run->lead > 0) {
      run->lead = run->lead - ns > little ? run->lead - ns : 0;
      over = run->lead <= 0;
      for (int k = 0; k < CLOCK_RESOURCES && over; k++)
        over = run->left[k] <= 0;
    } else {
      for (int k = 0; k < CLOCK_RESOURCES; k++) {
        const double left = run->left[k] > 0 ? run->left[k] - run->rate[k] * ns : 0;
        run->left[k] = left > little ? left : 0;
        over = over && run->left[k] <= 0;
      }
    }
    if (over)
      end(r, run);
    else
      r->running[kept++] = *run;
  }
  r->running_count = kept;
}
