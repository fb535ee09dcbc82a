/* The worker thread: see worker.h. The ring of jobs is guarded by a mutex that is held for a copy
   at a time, never across a wait for the GPU or a step. Longer than most rooms: proofs and pieces share
   the scalars of a launch, which nobody else may see. */
#define _GNU_SOURCE
#include "worker.h"
#include "../nvme/clock.h"
#include "../policy/node.h"
#include "../policy/trace.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum job_kind { JOB_PROOF, JOB_PIECE, JOB_END, JOB_CALL };

struct job {
  enum job_kind kind;
  union {
    struct proof_job proof;
    struct piece_job piece;
    const struct adam_job *call;
  };
};

enum { JOBS = 4096 };

struct worker {
  const struct adam_api *api;
  const struct config *config;
  _Atomic unsigned threads; /* of the team, or what it is to have from its next launch on */
  struct adam_team *team;   /* the worker thread's own */
  int team_threads;         /* asked for when it was made */
  pthread_t thread;
  pthread_mutex_t lock; /* protects what follows, up to `failing` */
  pthread_cond_t changed;
  struct job jobs[JOBS];
  uint32_t head, tail; /* jobs taken out and finished, jobs put in */
  uint32_t launches_begun, launches_done, proofs_done;
  enum proof_outcome outcome; /* of the last proof that was done */
  bool started, stopping;
  bool
      call_done; /* the last call's job was done; the worker thread writes it outside the lock, before
                     the call's end is told under it */
  char why[256];
  _Atomic bool failing;

  bool stopped; /* a difference was found and ends the job: the worker thread's own */

  /* The launch at hand: the worker thread's own. */
  enum slot_status verdict;
  struct proof_job proof;
  struct adam_scalars scalars[PROOF_TENSORS];
};

static void sleep_ns(long ns) {
  const struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  nanosleep(&t, NULL);
}

static void relax(void) {
#if defined __x86_64__
  __builtin_ia32_pause();
#elif defined __aarch64__
  __asm__ volatile("yield");
#endif
}

/* Waits for a word of the GPU's to reach a generation: spinning at first, since gradients come back
   to back, then sleeping longer and longer, since the next step may be seconds away. False when the
   worker was told to fail. */
static bool wait_ready(struct worker *worker, _Atomic uint32_t *ready, uint32_t generation) {
  for (unsigned i = 0;; i++) {
    /* acquire: what was copied down before the word was written is visible now. */
    if ((int32_t)(atomic_load_explicit(ready, memory_order_acquire) - generation) >= 0)
      return true;
    if (atomic_load_explicit(&worker->failing, memory_order_relaxed))
      return false;
    if (i < 4000)
      relax();
    else if (i < 4200)
      sleep_ns(10000);
    else
      sleep_ns(100000);
  }
}

/* ---- the proof ---- */

/* A tensor's probe as it came back. */
static struct probe_results results_of(const struct proof_job *job, unsigned tensor) {
  const struct kernel_shape shape = shape_of(&job->candidate);
  const struct proof_results *results = job->results;
  const size_t bytes = lists_bytes(&shape, PROBE_ELEMENTS), fine = fine_bytes(&shape);
  const unsigned char *fines = results->probes + job->tensors * bytes;
  return (struct probe_results){
      .grad_scale = job->scale_gathered ? &results->gathered[GATHERED_SCALE] : NULL,
      .inputs = job->inputs,
      .results = results->probes + tensor * bytes,
      .fine = fine ? fines + tensor * fine : NULL,
      .lr_known = !job->lr_gathered,
  };
}

static bool same_results(const struct proof_job *job, unsigned one, unsigned other) {
  const struct kernel_shape shape = shape_of(&job->candidate);
  const struct probe_results a = results_of(job, one), b = results_of(job, other);
  return memcmp(a.results, b.results, lists_bytes(&shape, PROBE_ELEMENTS)) == 0 &&
         (!a.fine || !b.fine || memcmp(a.fine, b.fine, fine_bytes(&shape)) == 0);
}

/* Whether the program's kernel skips this launch: *found_inf is 1, and it left the probes alone. */
static bool skips(const struct worker *worker, const struct proof_job *job) {
  if (!job->found_inf_gathered || job->results->gathered[GATHERED_FOUND_INF] != 1.0f)
    return false;
  for (unsigned t = 0; t < job->tensors; t++) {
    const struct probe_results results = results_of(job, t);
    if (!probe_untouched(worker->api, &job->candidate, &results))
      return false;
  }
  return true;
}

/* Scalars of every tensor of the launch, proven. Tensors with the same step share the computation:
   the device's results for them must then be the same, too. */
static bool prove(struct worker *worker, const struct proof_job *job, struct adam_hyper *hyper) {
  const struct proof_results *results = job->results;
  if (job->lr_gathered)
    hyper->lr = (double)results->gathered[GATHERED_LR];
  uint64_t nudged_count = 0;
  unsigned first = 0; /* a tensor that was computed */
  bool nudged = false;
  for (unsigned t = 0; t < job->tensors; t++) {
    if (t > 0 && memcmp(&results->gathered[t], &results->gathered[first], sizeof(float)) == 0) {
      if (!same_results(job, t, first))
        return false;
      worker->scalars[t] = worker->scalars[first];
    } else {
      const struct probe_results probe = results_of(job, t);
      if (!probe_prove(worker->api, &job->candidate, hyper, results->gathered[t], &probe,
                       &worker->scalars[t], &nudged))
        return false;
      first = t;
    }
    nudged_count += nudged;
  }
  report_add(proofs, job->tensors);
  report_add(proofs_nudged, nudged_count);
  return true;
}

static enum proof_outcome do_proof(struct worker *worker, const struct proof_job *job) {
  worker->proof = *job;
  if (!wait_ready(worker, job->ready, job->generation) || worker->stopped) {
    worker->verdict = SLOT_FAILED; /* the verdict word may still be an earlier launch's: leave it */
    return PROOF_FAILED;
  }
  if (skips(worker, job)) { /* nothing is done, by the program's kernel neither */
    worker->verdict = SLOT_REFUSED;
    *job->verdict = 1.0f;
    if (job->row)
      atomic_fetch_add_explicit(&job->row->launches_cpu, 1, memory_order_relaxed);
    return PROOF_SKIPPED;
  }
  const uint64_t begun = clock_now_ns();
  const bool proven = prove(worker, job, &worker->proof.hyper);
  trace_add(&(struct trace_span){.track = TRACE_CPU,
                                 .name = "proof",
                                 .begin_ns = begun,
                                 .end_ns = clock_now_ns(),
                                 .step = job->step});
  worker->verdict = proven ? SLOT_APPLY : SLOT_REFUSED;
  *job->verdict = proven ? 1.0f : 0.0f;
  if (proven) {
    report_add(elements_cpu, job->elements);
    if (job->row)
      atomic_fetch_add_explicit(&job->row->launches_cpu, 1, memory_order_relaxed);
    return PROOF_PROVEN;
  }
  atomic_store_explicit(job->refused, 1, memory_order_relaxed);
  report_add(refusals, 1);
  report_add(elements_direct, job->elements);
  if (job->row)
    atomic_fetch_add_explicit(&job->row->launches_refused, 1, memory_order_relaxed);
  return PROOF_REFUSED;
}

/* ---- a piece ---- */

/* Lets the team step `elements` of the piece from `first` on. `states`: where their exp_avg, exp_avg_sq and the maximum
   (or NULL) lie. */
static bool step_stretch(struct worker *worker, const struct piece_job *job, uint64_t first,
                         uint64_t elements, void *const states[CHECK_STATES]) {
  const struct proof_job *proof = &worker->proof;
  const size_t update_bytes = adam_type_bytes(adam_type_opmath(proof->candidate.type));
  const struct adam_job step = {
      .gradient = (const char *)job->gradient + first * adam_type_bytes(job->gradient_type),
      .exp_avg = states[0],
      .exp_avg_sq = states[1],
      .max_exp_avg_sq = states[2],
      .update = (char *)job->update + first * update_bytes,
      .elements = elements,
      .negate = job->negate,
      .generation = proof->candidate.generation,
      .form = proof->candidate.form,
      .gradient_type = job->gradient_type,
      .state_type = proof->candidate.state_type,
      .beta1 = proof->hyper.beta1,
      .beta2 = proof->hyper.beta2,
      .eps = proof->hyper.eps,
      .scalars = worker->scalars[job->tensor],
  };
  const uint64_t begun = clock_now_ns();
  const bool done = worker->api->step(worker->team, &step);
  const uint64_t ended = clock_now_ns();
  report_add(cpu_ns, ended - begun);
  trace_add(&(struct trace_span){.track = TRACE_CPU,
                                 .name = "step",
                                 .begin_ns = begun,
                                 .end_ns = ended,
                                 .elements = elements,
                                 .step = proof->step});
  job->words->lr_decay = step.scalars.lr_decay;
  job->words->lr_decay_double = step.scalars.lr_decay_double;
  return done;
}

static void lag(const struct worker *worker) {
  if (worker->config->test_worker_lag_ms)
    sleep_ns((long)worker->config->test_worker_lag_ms * 1000000);
}

static bool step(struct worker *worker, const struct piece_job *job,
                 void *const states[CHECK_STATES]) {
  lag(worker);
  return step_stretch(worker, job, 0, job->elements, states);
}

/* A piece whose state comes and goes. It is waited for in any case: what lets go of it must be one who waited. */
static enum slot_status step_paged(struct worker *worker, const struct piece_job *job,
                                   enum slot_status status) {
  struct paged_state *paged = job->paged;
  const uint64_t begun = clock_now_ns();
  const bool there = paged->wait(paged, &worker->failing);
  const uint64_t ended = clock_now_ns();
  report_add(drive_wait_ns, ended - begun);
  trace_add(&(struct trace_span){.track = TRACE_CPU,
                                 .name = "waits for drives",
                                 .begin_ns = begun,
                                 .end_ns = ended,
                                 .step = worker->proof.step});
  if (status == SLOT_APPLY && !there)
    status = SLOT_FAILED;
  if (status == SLOT_APPLY)
    lag(worker);
  for (unsigned i = 0; i < paged->count && status == SLOT_APPLY; i++) {
    const struct stretch *stretch = &paged->stretches[i];
    if (!step_stretch(worker, job, stretch->first, stretch->elements, stretch->states))
      status = SLOT_FAILED;
  }
  paged->done(paged, status == SLOT_APPLY);
  return status;
}

/* After a difference that ends the job nothing more is stepped, and the apply kernel traps. */
static enum slot_status after_difference(struct worker *worker, const struct piece_check *check) {
  if (check->before || worker->config->verify_action != VERIFY_STOP)
    return SLOT_APPLY;
  worker->stopped = true;
  worker->verdict = SLOT_FAILED;
  return SLOT_FAILED;
}

static void copy_states(const struct piece_shape *shape, void *const to[CHECK_STATES],
                        const void *const from[CHECK_STATES]) {
  for (unsigned i = 0; i < (shape->kernel.amsgrad ? 3 : 2); i++)
    memcpy(to[i], from[i], shape->elements * adam_type_bytes(shape->kernel.state_type));
}

/* Steps a piece that is verified, up to the parameter, which the GPU makes next. What is compared before
   it is applied is stepped in copies, and what is kept is the program's kernel's. */
static enum slot_status step_verified(struct worker *worker, const struct piece_job *job,
                                      const struct piece_shape *shape,
                                      void *const states[CHECK_STATES], bool *equal) {
  const struct piece_check *check = &job->check;
  if (check->before)
    copy_states(shape, check->shadow, (const void *const *)states);
  /* Who works in place waits until the copies of the state are made. */
  if (!wait_ready(worker, &check->words->copied, check->generation))
    return SLOT_FAILED;
  void *const *made = check->before ? check->shadow : states;
  if (!step(worker, job, made))
    return SLOT_FAILED;
  *equal = compare_states(worker->api, worker->config, check, &worker->proof.checked, shape, made);
  if (check->before)
    copy_states(shape, states, check->kernel_states);
  return *equal ? SLOT_APPLY : after_difference(worker, check);
}

/* The rest of it: the parameter has been made. */
static enum slot_status verify_parameters(struct worker *worker, const struct piece_job *job,
                                          const struct piece_shape *shape, bool equal) {
  const struct piece_check *check = &job->check;
  const struct checked_function *function = &worker->proof.checked;
  enum slot_status status = SLOT_APPLY;
  if (!wait_ready(worker, &check->words->applied, check->generation))
    return SLOT_FAILED;
  if (equal && !compare_parameters(worker->api, worker->config, check, function, shape))
    status = after_difference(worker, check);
  compare_done(function, shape);
  return status;
}

static void do_piece(struct worker *worker, const struct piece_job *job) {
  struct slot_words *words = job->words;
  const struct piece_check *check = &job->check;
  const struct piece_shape shape = {shape_of(&worker->proof.candidate), job->elements};
  void *const states[CHECK_STATES] = {job->exp_avg, job->exp_avg_sq, job->max_exp_avg_sq};
  enum slot_status status = worker->verdict;
  bool equal = true;
  /* Also when refused: before `ready` the slot's words are still the device's to read for the
   * generation before. */
  if (!wait_ready(worker, &words->ready, job->generation))
    status = SLOT_FAILED;
  if (job->paged) {
    status = step_paged(worker, job, status);
    if (status == SLOT_APPLY && worker->proof.checked.differed)
      compare_stepped(&worker->proof.checked);
  } else if (status == SLOT_APPLY && check->words) {
    status = step_verified(worker, job, &shape, states, &equal);
  } else if (status == SLOT_APPLY) {
    if (!step(worker, job, states))
      status = SLOT_FAILED;
    else if (worker->proof.checked.differed)
      compare_stepped(&worker->proof.checked);
  }
  atomic_store_explicit(&words->status, slot_status(job->generation, status), memory_order_relaxed);
  /* release: update, scalars and status are there when the device sees the word. */
  atomic_store_explicit(&words->done, job->generation, memory_order_release);
  if (!check->words)
    return;
  if (!equal && status != SLOT_APPLY)
    compare_done(&worker->proof.checked, &shape);
  if (status == SLOT_APPLY)
    status = verify_parameters(worker, job, &shape, equal);
  /* Its words are this generation's from `copied` on: not before, for the GPU may still be reading them. */
  else if (!wait_ready(worker, &check->words->copied, check->generation))
    status = SLOT_FAILED;
  atomic_store_explicit(&check->words->status, slot_status(check->generation, status),
                        memory_order_relaxed);
  /* release: the status is there when the device sees the word. */
  atomic_store_explicit(&check->words->checked, check->generation, memory_order_release);
}

/* ---- the thread ---- */

/* The ranks of the node have come to be more or fewer: another team, if it can be had, takes the launches from now on. */
static void resize(struct worker *worker) {
  const int threads = (int)atomic_load_explicit(&worker->threads, memory_order_relaxed);
  char why[256];
  if (threads == worker->team_threads)
    return;
  worker->team_threads = threads;
  struct adam_team *team =
      worker->api->team_create(threads, (enum adam_isa)worker->config->isa, why, sizeof why);
  if (!team)
    return;
  worker->api->team_destroy(worker->team);
  worker->team = team;
}

static void *work(void *argument) {
  struct worker *worker = argument;
  pthread_setname_np(pthread_self(), "offload-step");
  char why[256] = "";
  const struct config *config = worker->config;
  /* Made here: an OpenMP runtime's threads belong to the thread that calls them. */
  worker->team_threads = (int)atomic_load_explicit(&worker->threads, memory_order_relaxed);
  worker->team =
      worker->api->team_create(worker->team_threads, (enum adam_isa)config->isa, why, sizeof why);
  pthread_mutex_lock(&worker->lock);
  memcpy(worker->why, why, sizeof why);
  worker->started = true;
  pthread_cond_broadcast(&worker->changed);
  while (worker->team) {
    while (worker->head == worker->tail && !worker->stopping)
      pthread_cond_wait(&worker->changed, &worker->lock);
    if (worker->head == worker->tail)
      break;
    const struct job job = worker->jobs[worker->head % JOBS];
    pthread_mutex_unlock(&worker->lock);
    enum proof_outcome outcome = PROOF_UNKNOWN;
    switch (job.kind) {
    case JOB_PROOF:
      resize(worker);
      outcome = do_proof(worker, &job.proof);
      break;
    case JOB_END:
      break;
    case JOB_PIECE:
      do_piece(worker, &job.piece);
      break;
    case JOB_CALL:
      worker->call_done = worker->api->step(worker->team, job.call);
      break;
    }
    pthread_mutex_lock(&worker->lock);
    worker->head++;
    if (job.kind == JOB_END || (job.kind == JOB_PIECE && job.piece.last))
      worker->launches_done++;
    if (job.kind == JOB_PROOF) {
      worker->outcome = outcome;
      worker->proofs_done++;
    }
    pthread_cond_broadcast(&worker->changed);
  }
  pthread_mutex_unlock(&worker->lock);
  if (worker->team)
    worker->api->team_destroy(worker->team);
  return NULL;
}

static _Atomic unsigned workers; /* of this process */

void worker_part(struct worker *worker, unsigned among) {
  const struct config *config = worker->config;
  atomic_store_explicit(&worker->threads,
                        config->threads ? config->threads : node_threads(config, among),
                        memory_order_relaxed);
}

struct worker *worker_start(const struct adam_api *api, const struct config *config, char *why,
                            size_t why_bytes) {
  struct worker *worker = calloc(1, sizeof *worker);
  if (!worker) {
    snprintf(why, why_bytes, "no memory for the CPU step's worker");
    return NULL;
  }
  worker->api = api;
  worker->config = config;
  worker_part(worker, 1 + atomic_load_explicit(&workers, memory_order_relaxed));
  worker->verdict = SLOT_FAILED;
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&worker->lock, NULL);
  pthread_cond_init(&worker->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  /* Signals are the program's: its handlers must not run on our thread. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&worker->thread, NULL, work, worker);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error) {
    snprintf(why, why_bytes, "the CPU step's thread can't be started: %s", strerror(error));
    free(worker);
    return NULL;
  }
  atomic_fetch_add_explicit(&workers, 1, memory_order_relaxed);
  pthread_mutex_lock(&worker->lock);
  while (!worker->started)
    pthread_cond_wait(&worker->changed, &worker->lock);
  const bool teamed = worker->team != NULL;
  pthread_mutex_unlock(&worker->lock);
  if (teamed && worker->why[0])
    report_reason("%s", worker->why); /* fewer threads than asked for */
  if (teamed)
    return worker;
  snprintf(why, why_bytes, "%s", worker->why);
  worker_stop(worker);
  return NULL;
}

/* ---- the other side ---- */

static void hand_over(struct worker *worker, const struct job *job) {
  pthread_mutex_lock(&worker->lock);
  while (worker->tail - worker->head == JOBS)
    pthread_cond_wait(&worker->changed, &worker->lock);
  worker->jobs[worker->tail++ % JOBS] = *job;
  if (job->kind == JOB_PROOF)
    worker->launches_begun++;
  pthread_cond_broadcast(&worker->changed);
  pthread_mutex_unlock(&worker->lock);
}

void worker_prove(struct worker *worker, const struct proof_job *proof) {
  hand_over(worker, &(struct job){.kind = JOB_PROOF, .proof = *proof});
}

void worker_step(struct worker *worker, const struct piece_job *piece) {
  hand_over(worker, &(struct job){.kind = JOB_PIECE, .piece = *piece});
}

void worker_end_launch(struct worker *worker) {
  hand_over(worker, &(struct job){.kind = JOB_END});
}

static struct timespec deadline_in(uint64_t limit_ns) {
  const uint64_t until = clock_now_ns() + limit_ns;
  return (struct timespec){.tv_sec = (time_t)(until / 1000000000u),
                           .tv_nsec = (long)(until % 1000000000u)};
}

enum proof_outcome worker_wait_proof(struct worker *worker, uint64_t limit_ns) {
  const struct timespec deadline = deadline_in(limit_ns);
  int result = 0;
  pthread_mutex_lock(&worker->lock);
  while (worker->proofs_done != worker->launches_begun && result == 0)
    result = pthread_cond_timedwait(&worker->changed, &worker->lock, &deadline);
  const enum proof_outcome outcome =
      worker->proofs_done == worker->launches_begun ? worker->outcome : PROOF_UNKNOWN;
  pthread_mutex_unlock(&worker->lock);
  return outcome;
}

uint32_t worker_jobs_done(struct worker *worker) {
  pthread_mutex_lock(&worker->lock);
  const uint32_t done = worker->head;
  pthread_mutex_unlock(&worker->lock);
  return done;
}

bool worker_call(struct worker *worker, const struct adam_job *call) {
  hand_over(worker, &(struct job){.kind = JOB_CALL, .call = call});
  pthread_mutex_lock(&worker->lock);
  /* The only caller is this one, so "all done" includes it. */
  while (worker->head != worker->tail)
    pthread_cond_wait(&worker->changed, &worker->lock);
  const bool done = worker->call_done;
  pthread_mutex_unlock(&worker->lock);
  return done;
}

uint32_t worker_launches_begun(const struct worker *worker) {
  return worker->launches_begun; /* written by the same caller */
}

bool worker_launch_done(struct worker *worker, uint32_t launch) {
  pthread_mutex_lock(&worker->lock);
  const bool done = (int32_t)(worker->launches_done - launch) >= 0;
  pthread_mutex_unlock(&worker->lock);
  return done;
}

unsigned worker_threads(const struct worker *worker) {
  return atomic_load_explicit(&worker->threads, memory_order_relaxed);
}

bool worker_has_room(struct worker *worker, unsigned jobs) {
  pthread_mutex_lock(&worker->lock);
  const bool room = JOBS - (worker->tail - worker->head) >= jobs;
  pthread_mutex_unlock(&worker->lock);
  return room;
}

bool worker_wait_idle(struct worker *worker, uint64_t limit_ns) {
  const struct timespec deadline = deadline_in(limit_ns);
  pthread_mutex_lock(&worker->lock);
  int result = 0;
  while (worker->head != worker->tail && result == 0)
    result = pthread_cond_timedwait(&worker->changed, &worker->lock, &deadline);
  const bool idle = worker->head == worker->tail;
  pthread_mutex_unlock(&worker->lock);
  return idle;
}

void worker_fail(struct worker *worker) {
  atomic_store_explicit(&worker->failing, true, memory_order_relaxed);
}

void worker_stop(struct worker *worker) {
  pthread_mutex_lock(&worker->lock);
  worker->stopping = true;
  pthread_cond_broadcast(&worker->changed);
  pthread_mutex_unlock(&worker->lock);
  pthread_join(worker->thread, NULL);
  atomic_fetch_sub_explicit(&workers, 1, memory_order_relaxed);
  pthread_cond_destroy(&worker->changed);
  pthread_mutex_destroy(&worker->lock);
  free(worker);
}
