/* The step's part of the drive tier on frames of the test's own: how runs are cut at borders of pieces, what becomes of tickets when
   something is missing, words of gates, and a streamed run whose bytes are followed from frames to the slot and back. Device
   memory is the test's; what is on drives can't be touched where it would be mapped. */
#include "shim/drive.h"
#include "shim/frames.h"
#include "shim/move.h"
#include "shim/plan.h"
#include "shim/process.h"
#include "tests/lib/tap.h"
#include <string.h>
#include <sys/mman.h>

enum { PIECE = 65536, PIECES = 12, UNITS = 2 * PIECES, TICKETS = 512 };
enum { FLOATS = PIECE / 4 };

struct driver driver;

/* ---- ranges: two states of one tensor, and a parameter ---- */

static struct piece pieces[3][PIECES];
static struct range ranges[3];

struct range *range_find(uintptr_t address) {
  for (unsigned i = 0; i < 3; i++)
    if (address - ranges[i].base < ranges[i].bytes)
      return &ranges[i];
  return NULL;
}
bool range_any_drive(void) {
  return true;
}
bool range_off_device(uintptr_t address, size_t bytes, bool *drive) {
  const struct range *range = range_find(address);
  const size_t last = (address + bytes - 1 - range->base) / PIECE;
  bool off = true;
  *drive = false;
  for (size_t i = (address - range->base) / PIECE; i <= last; i++) {
    off &= range->pieces[i].tier != PIECE_DEVICE;
    *drive |= range->pieces[i].tier == PIECE_DRIVE;
  }
  return off;
}

static void make_ranges(void) {
  for (unsigned i = 0; i < 3; i++) {
    void *memory =
        mmap(NULL, PIECES * PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ranges[i] = (struct range){.base = (uintptr_t)memory,
                               .bytes = PIECES * PIECE,
                               .piece_bytes = PIECE,
                               .piece_count = PIECES,
                               .pieces = pieces[i]};
  }
}

static void set_tier(unsigned range, unsigned piece, enum piece_tier tier) {
  pieces[range][piece].tier = tier;
  pieces[range][piece].unit = range * PIECES + piece;
  ranges[range].drive_pieces = 0;
  for (unsigned i = 0; i < PIECES; i++)
    ranges[range].drive_pieces += pieces[range][i].tier == PIECE_DRIVE;
  mprotect((char *)ranges[range].base + (size_t)piece * PIECE, PIECE,
           tier == PIECE_DRIVE ? PROT_NONE : PROT_READ | PROT_WRITE);
}

/* ---- frames and tickets ---- */

struct ticket {
  char what[4]; /* m made, g gone, w watched, d dropped, r released as written, n as not */
  unsigned added;
  enum ticket_state state;
};
static struct ticket tickets[TICKETS];
static unsigned ticket_count, make_fails, add_fails; /* at which call; 0: never */
static char frames[UNITS][PIECE];
static unsigned frame_count = 64, opened_early;
static const char *lost = "";
static char stopped[600];
static struct gate_words *watched[TICKETS];
static uint32_t watched_generation[TICKETS];
static unsigned watch_count;

static void mark(struct ticket *ticket, char what) {
  char *end = memchr(ticket->what, 0, sizeof ticket->what);
  *end = what;
}
struct frames *frames_of(CUcontext context, size_t piece_bytes, char *why, size_t why_bytes) {
  (void)context, (void)why, (void)why_bytes;
  return piece_bytes == PIECE ? (struct frames *)frames : NULL;
}
struct frames *frames_find(CUcontext context) {
  (void)context;
  return (struct frames *)frames;
}
unsigned frames_count(const struct frames *any) {
  (void)any;
  return frame_count;
}
bool frames_stream_ready(struct frames *any, char *why, size_t why_bytes) {
  (void)any, (void)why, (void)why_bytes;
  return true;
}
const char *frames_lost(void) {
  return lost;
}
void frames_say_lost(void) {
  process_stop(lost);
}
struct ticket *ticket_make(struct frames *any, enum ticket_kind kind) {
  (void)any;
  if (make_fails && ticket_count + 1 == make_fails)
    return NULL;
  opened_early += kind != TICKET_STEP;
  struct ticket *ticket = &tickets[ticket_count++];
  *ticket = (struct ticket){.what = "m", .state = TICKET_READY};
  return ticket;
}
void *ticket_add(struct ticket *ticket, uint32_t unit, bool fill) {
  static unsigned calls;
  if (ticket == tickets && ticket->added == 0)
    calls = 0;
  ticket->added++;
  return fill || ++calls == add_fails ? NULL : frames[unit];
}
void ticket_go(struct ticket *ticket) {
  for (unsigned i = 0; i < TICKETS && tickets[i].what[0]; i++)
    opened_early += tickets[i].added == 0; /* one that goes before all are named */
  mark(ticket, 'g');
}
void ticket_drop(struct ticket *ticket) {
  mark(ticket, 'd');
}
enum ticket_state ticket_wait(struct ticket *ticket, uint64_t limit_ns,
                              const _Atomic bool *give_up) {
  (void)limit_ns, (void)give_up;
  return ticket->state;
}
void ticket_release(struct ticket *ticket, bool wrote) {
  mark(ticket, wrote ? 'r' : 'n');
}
static char order[64]; /* of what is enqueued: calls of a run, a letter each */
static void enqueued(char what) {
  const size_t length = strlen(order);
  if (length + 1 < sizeof order && (!length || order[length - 1] != what))
    order[length] = what;
}
void ticket_watch(struct ticket *ticket, struct gate_words *words, uint32_t generation) {
  mark(ticket, 'w');
  watched[watch_count] = words;
  watched_generation[watch_count++] = generation;
  enqueued('w');
}

/* All tickets went this way. */
static bool went(const char *what) {
  for (unsigned i = 0; i < ticket_count; i++)
    if (strncmp(tickets[i].what, what, sizeof tickets[i].what))
      return false;
  return ticket_count > 0;
}

/* ---- what else the step asks ---- */

void process_stop(const char *reason) {
  snprintf(stopped, sizeof stopped, "%s", reason);
}
bool process_active(void) {
  return !stopped[0];
}
CUresult process_note_failure(CUresult result, const char *where) {
  if (result == CUDA_ERROR_ILLEGAL_ADDRESS)
    process_stop(where);
  return result;
}
static bool capture_open;
bool process_capture_open(void) {
  return capture_open;
}
static unsigned proofs_asked;
static uint64_t waited_ns;
static bool proof_comes = true;
static uint32_t jobs_done, jobs_in_front; /* one is done at every question */
uint32_t worker_jobs_done(struct worker *worker) {
  (void)worker;
  if (jobs_in_front) {
    jobs_in_front--;
    jobs_done++;
  }
  return jobs_done;
}
enum proof_outcome worker_wait_proof(struct worker *worker, uint64_t limit_ns) {
  (void)worker;
  proofs_asked++;
  waited_ns += limit_ns;
  return proof_comes ? PROOF_PROVEN : PROOF_UNKNOWN;
}
CUresult plan_broken(struct plan *plan, CUresult result, const char *what) {
  (void)plan, (void)what;
  return result;
}
static char brought[3][PIECES + 1];
CUresult drive_fault_locked(struct range *range, uint32_t first, uint32_t last) {
  for (uint32_t i = first; i <= last; i++) {
    brought[range - ranges][i] = 'x';
    set_tier((unsigned)(range - ranges), i, PIECE_DEVICE);
  }
  return CUDA_SUCCESS;
}

/* ---- the device ---- */

static struct gate_words pinned[4 * 64];
static unsigned pinned_count;
CUresult holding_pin(void **memory, size_t bytes) {
  *memory = pinned + pinned_count;
  pinned_count += (unsigned)(bytes / sizeof *pinned);
  return CUDA_SUCCESS;
}
static CUstream const up = (CUstream)0x10, down = (CUstream)0x20, programs = (CUstream)0x30;
static _Alignas(64) char slots[2][9 * PIECE];
static unsigned wrong_streams, wrong_alignment;
static bool down_comes = true; /* at once */

static CUresult copy(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  enqueued(stream == up ? 'u' : 'd');
  memcpy((void *)(uintptr_t)to, from, bytes);
  return CUDA_SUCCESS;
}
static CUresult copy_up(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  wrong_streams += stream != up;
  return copy(to, from, bytes, stream);
}
static CUresult copy_down(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  wrong_streams += stream != down;
  return copy((CUdeviceptr)(uintptr_t)to, (const void *)(uintptr_t)from, bytes, stream);
}
static CUresult copy_between(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(to, (const void *)(uintptr_t)from, bytes, stream);
}
static CUresult wait_event(CUstream stream, CUevent event, unsigned flags) {
  (void)stream, (void)event, (void)flags;
  return CUDA_SUCCESS;
}
static CUresult event_record(CUevent event, CUstream stream) {
  (void)event, (void)stream;
  return CUDA_SUCCESS;
}
static CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  const struct gate_words *words = watched[watch_count - 1];
  wrong_streams += stream != up || flags != CU_STREAM_WAIT_VALUE_GEQ ||
                   address != (CUdeviceptr)(uintptr_t)&words->ready ||
                   value != watched_generation[watch_count - 1];
  enqueued('v');
  return CUDA_SUCCESS;
}
static CUresult write_value(CUstream stream, CUdeviceptr address, cuuint32_t value,
                            unsigned flags) {
  struct gate_words *words = watched[watch_count - 1];
  (void)flags;
  wrong_streams += stream != down || address != (CUdeviceptr)(uintptr_t)&words->down ||
                   value != watched_generation[watch_count - 1];
  if (down_comes)
    words->down = value;
  enqueued('D');
  return CUDA_SUCCESS;
}
CUresult kernels_gate(const struct kernels *kernels, CUdeviceptr words, uint32_t generation,
                      CUstream stream) {
  (void)kernels;
  wrong_streams += stream != up || words != (CUdeviceptr)(uintptr_t)watched[watch_count - 1] ||
                   generation != watched_generation[watch_count - 1];
  enqueued('g');
  return CUDA_SUCCESS;
}

static struct plan plan;
static struct ring ring;
static struct function function;
static unsigned char metadata[METADATA_BYTES_MOST];

struct staging_slot *staging_next(struct staging *staging) {
  return &staging->slots[staging->next];
}

/* The program's kernel: adds 1 to each element of the first state, 2 of the second. */
CUresult plan_launch(const struct plan *of, const unsigned char *list, unsigned blocks,
                     const float *found_inf) {
  const struct family *family = &of->function->family;
  (void)found_inf;
  enqueued('k');
  for (unsigned block = 0; block < blocks; block++) {
    const unsigned tensor = metadata_block_tensor(family, list, block);
    const uint64_t elements = metadata_chunk_elements(family, list, block);
    for (unsigned state = 0; state < 2; state++) {
      float *at =
          (float *)metadata_address(family, list, (enum tensor_list)(LIST_STATE + state), tensor) +
          (size_t)metadata_block_chunk(family, list, block) * CHUNK_ELEMENTS;
      wrong_alignment +=
          ((uintptr_t)at - run_address(of, &of->runs[0], LIST_STATE + state)) % STAGING_ALIGNMENT !=
          0;
      wrong_streams += (char *)at < slots[0] || (char *)(at + elements) > slots[0] + sizeof slots;
      for (uint64_t i = 0; i < elements; i++)
        at[i] += (float)(1 + state);
    }
  }
  return CUDA_SUCCESS;
}

/* ---- a launch ---- */

/* Elements of the tensor's states in front of the first of each range. */
enum { FIRST_M = 1001, FIRST_V = 9003, ELEMENTS = 2 * CHUNK_ELEMENTS + 5000 };

static float *home(unsigned state) {
  return (float *)ranges[state].base + (state ? FIRST_V : FIRST_M);
}
static void tensor_at(size_t bytes_off) {
  const uintptr_t lists[LISTS_MOST] = {ranges[2].base, ranges[2].base,
                                       (uintptr_t)home(0) + bytes_off,
                                       (uintptr_t)home(1) + bytes_off};
  metadata_set_tensor(&function.family, metadata, 0, lists, ELEMENTS, 8);
  for (unsigned block = 0; block < 3; block++)
    metadata_set_block(&function.family, metadata, block, 0, block);
}

/* One tensor of three chunks, all on drives, a run for each. */
static void begin(void) {
  static struct launch launch = {.grid = {3, 1, 1}};
  memset(tickets, 0, sizeof tickets);
  ticket_count = make_fails = add_fails = opened_early = 0;
  memset(brought, 0, sizeof brought);
  memset(order, 0, sizeof order);
  stopped[0] = 0;
  for (unsigned state = 0; state < 2; state++)
    for (unsigned i = 0; i < PIECES; i++)
      set_tier(state, i, PIECE_DRIVE);
  for (unsigned i = 0; i < PIECES; i++)
    set_tier(2, i, PIECE_DEVICE);
  function.family = (struct family){
      .lists = 4,
      .parameter_bytes = 4,
      .state_bytes = 4,
      .metadata_bytes = 8000,
      .tensors = 16,
      .blocks = 320,
      .numel_bytes = 8,
      .block_tensor_bytes = 1,
      .numel_offset = 16 * 8 * 4,
      .steps_offset = 16 * 8 * 5,
      .block_tensor_offset = 16 * 8 * 6,
      .block_chunk_offset = 16 * 8 * 6 + 320,
  };
  tensor_at(0);
  plan = (struct plan){.launch = &launch,
                       .stream = programs,
                       .function = &function,
                       .arguments = {.metadata = metadata},
                       .ring = &ring,
                       .ours = 3,
                       .run_count = 3,
                       .ours_elements = ELEMENTS,
                       .drive_elements_most = CHUNK_ELEMENTS};
  memcpy(plan.ours_metadata, metadata, sizeof metadata);
  for (unsigned i = 0; i < 3; i++)
    plan.runs[i] = (struct run_of_blocks){
        .chunk = i, .blocks = 1, .elements = i < 2 ? CHUNK_ELEMENTS : 5000, .drive = true};
  ring.up = up;
  ring.down = down;
  for (unsigned i = 0; i < 2; i++)
    ring.staging.slots[i].first = (CUdeviceptr)(uintptr_t)(slots[i] + 32);
  ring.staging.slot_count = 2;
}

static bool ready(void) {
  const char *why = "";
  return drive_begin(&plan, &why);
}

static void test_stretches(void) {
  begin();
  set_tier(0, 2, PIECE_HOST);
  bool whole = ready(), single = true, at_home = true;
  unsigned framed[4] = {0};
  for (unsigned r = 0; r < 3 && whole; r++) {
    const struct paged_state *paged = plan.runs[r].paged;
    uint64_t next = 0;
    for (unsigned i = 0; i < paged->count; i++) {
      const struct stretch *stretch = &paged->stretches[i];
      whole &= stretch->first == next && stretch->elements > 0;
      next += stretch->elements;
      framed[stretch->framed & 3]++;
      for (unsigned state = 0; state < 2; state++) {
        const size_t element =
            r * (size_t)CHUNK_ELEMENTS + stretch->first + (state ? FIRST_V : FIRST_M);
        const size_t piece = element / FLOATS;
        single &= (element + stretch->elements - 1) / FLOATS == piece;
        const bool drive = pieces[state][piece].tier == PIECE_DRIVE;
        const char *expected =
            drive ? frames[state * PIECES + piece] : (char *)ranges[state].base + piece * PIECE;
        at_home &= stretch->states[state] == expected + element % FLOATS * 4 &&
                   (stretch->framed >> state & 1) == drive;
      }
    }
    whole &= next == plan.runs[r].elements;
  }
  tap_ok(whole, "stretches name every element of a run once and in order");
  tap_ok(single, "no stretch crosses a border of pieces in any state");
  tap_ok(at_home && framed[3] > 10 && framed[2] == 2 && !framed[0] && !framed[1],
         "each state's bytes are in its frame, or at home where the piece is on the host");
  tap_ok(went("mg") && ticket_count == 3 && !opened_early,
         "every run has a ticket of the step's, and none goes before all are named");
  drive_leave(&plan);
  tap_ok(went("mgn") && !plan.runs[0].paged && !plan.runs[2].paged,
         "tickets that nobody took over are released as not written");
  begin();
  tensor_at(2);
  tap_ok(!ready() && went("md"), "a border inside an element is refused, and its ticket dropped");
}

static void test_missing(void) {
  unsigned wrong = 0;
  for (unsigned fails = 1; fails <= 3; fails++) {
    begin();
    make_fails = fails;
    const char *why = NULL;
    wrong += drive_begin(&plan, &why) || !why || !*why || ticket_count != fails - 1;
    for (unsigned i = 0; i < ticket_count; i++)
      wrong += strcmp(tickets[i].what, "md") != 0;
    for (unsigned r = 0; r < 3; r++)
      wrong += plan.runs[r].paged != NULL;
  }
  tap_ok(!wrong, "without memory for a ticket those before it are dropped, and none has gone");
  begin();
  tap_ok(ready(), "the launch has so many stretches");
  unsigned stretches = 0;
  for (unsigned r = 0; r < 3; r++)
    stretches += 2 * plan.runs[r].paged->count;
  drive_leave(&plan);
  wrong = 0;
  for (unsigned fails = 1; fails <= stretches; fails++) {
    begin();
    add_fails = fails;
    wrong += ready() || !went("md");
  }
  tap_ok(!wrong && stretches > 30, "so they are wherever a unit can't be named (%u places)",
         stretches);
  begin();
  const struct run_of_blocks *run = &plan.runs[0];
  tap_ok(!drive_run_fits(&plan, run, CHUNK_ELEMENTS), "a run is no longer than a slot of staging");
  plan.drive_elements_most = UINT64_MAX;
  frame_count = 4 * 18;
  tap_ok(drive_run_fits(&plan, run, CHUNK_ELEMENTS), "18 pieces fit a ticket of 72 frames");
  frame_count = 4 * 18 - 1;
  tap_ok(!drive_run_fits(&plan, run, CHUNK_ELEMENTS), "and not of 71: a ticket is of a quarter");
  frame_count = 64;
}

static void test_waiting(void) {
  begin();
  const _Atomic bool on = false;
  bool wrong = !ready();
  struct paged_state *paged = plan.runs[0].paged;
  wrong |= !paged->wait(paged, &on) || stopped[0];
  tickets[0].state = TICKET_FAILED;
  wrong |= paged->wait(paged, &on) || stopped[0];
  lost = "/mnt/a: read at 4096: Input/output error";
  tap_ok(!wrong && !paged->wait(paged, &on) && strcmp(stopped, lost) == 0,
         "a read that failed ends the hooks: %s", stopped);
  const char *why = "";
  stopped[0] = 0;
  tap_ok(!drive_ready(&plan, &why) && strcmp(why, lost) == 0 && stopped[0],
         "and no launch begins on drives after it");
  lost = "";
  drive_leave(&plan);
}

static CUresult query_answer = CUDA_ERROR_NOT_READY;
static CUresult stream_query(CUstream stream) {
  (void)stream;
  return query_answer;
}

static void test_verdict(void) {
  begin();
  driver.cuStreamQuery = stream_query;
  bool wrong = drive_verdict(&plan) != PROOF_PROVEN || drive_verdict(&plan) != PROOF_PROVEN;
  wrong |= proofs_asked != 2;
  proof_comes = false;
  query_answer = CUDA_ERROR_ILLEGAL_ADDRESS;
  stopped[0] = 0;
  wrong |= drive_verdict(&plan) != PROOF_UNKNOWN || !stopped[0];
  tap_ok(!wrong && proofs_asked == 3 && !ring.verdict_late,
         "no proof is waited for that a lost GPU would have to bring");
  query_answer = CUDA_ERROR_NOT_READY;
  stopped[0] = 0;
  waited_ns = 0;
  jobs_in_front = 30;
  wrong =
      drive_verdict(&plan) != PROOF_UNKNOWN || waited_ns > 12000000000 || waited_ns < 11000000000;
  const unsigned asked = proofs_asked;
  proof_comes = true;
  tap_ok(!wrong && drive_verdict(&plan) == PROOF_UNKNOWN && proofs_asked == asked,
         "the program is kept waiting for a proof ten seconds after the last piece at most, and "
         "then for none");
  ring.verdict_late = false;
}

/* ---- streamed ---- */

static unsigned values_wrong(float offset_m, float offset_v) {
  unsigned wrong = 0;
  for (unsigned state = 0; state < 2; state++)
    for (size_t i = 0; i < PIECES * (size_t)FLOATS; i++) {
      const size_t first = state ? FIRST_V : FIRST_M, piece = i / FLOATS;
      const float *at =
          pieces[state][piece].tier == PIECE_DRIVE
              ? (const float *)(const void *)frames[state * PIECES + piece] + i % FLOATS
              : (const float *)ranges[state].base + i;
      const float expected =
          (float)i + (i >= first && i < first + ELEMENTS ? (state ? offset_v : offset_m) : 0);
      wrong += *at != expected;
    }
  return wrong;
}

static void test_streamed(void) {
  begin();
  set_tier(1, 3, PIECE_HOST);
  for (unsigned state = 0; state < 2; state++)
    for (size_t i = 0; i < PIECES * (size_t)FLOATS; i++) {
      const size_t piece = i / FLOATS;
      float *at = pieces[state][piece].tier == PIECE_DRIVE
                      ? (float *)(void *)frames[state * PIECES + piece]
                      : (float *)ranges[state].base + piece * FLOATS;
      at[i % FLOATS] = (float)i;
    }
  wrong_streams = wrong_alignment = watch_count = 0;
  const uint64_t links = atomic_load(&report.totals.link_bytes_up),
                 links_down = atomic_load(&report.totals.link_bytes_down);
  tap_ok(ready() && drive_stream(&plan) == CUDA_SUCCESS && values_wrong(1, 2) == 0,
         "a streamed launch steps each element on drives once, and no other byte");
  tap_ok(!wrong_alignment, "the kernel finds states at addresses of the same low bits");
  tap_ok(went("mgw") && !plan.runs[0].paged && !wrong_streams,
         "its tickets are the keeper's, and each call is on its stream with its run's words");
  tap_ok(!strncmp(order, "wvgukdD", 7) && strlen(order) == 21,
         "in this order: keeper, wait, gate, up, kernel, down, down's word (%s)", order);
  tap_ok(atomic_load(&report.totals.link_bytes_up) - links == (uint64_t)ELEMENTS * 2 * 4 &&
             atomic_load(&report.totals.link_bytes_down) ==
                 links_down + (uint64_t)ELEMENTS * 2 * 4 &&
             atomic_load(&report.totals.elements_stream) == ELEMENTS &&
             atomic_load(&report.totals.elements_drive) == ELEMENTS,
         "bytes of the link and elements are counted");
}

static unsigned shared_words(unsigned first) {
  unsigned shared = 0;
  for (unsigned i = first; i < watch_count; i++)
    for (unsigned k = first; k < i; k++)
      shared += watched[i] == watched[k];
  return shared;
}

static void test_words(void) {
  wrong_streams = watch_count = 0;
  bool good = true;
  for (unsigned launch = 0; launch < 100; launch++) {
    begin();
    good &= ready() && drive_stream(&plan) == CUDA_SUCCESS;
  }
  unsigned falling = 0;
  for (unsigned i = 0; i < watch_count; i++)
    for (unsigned k = 0; k < i; k++)
      falling += watched[i] == watched[k] && watched_generation[i] <= watched_generation[k];
  tap_ok(good && pinned_count == 64 && !falling && shared_words(0) > 0,
         "words are used again once their `down` has come, with a higher generation");
  down_comes = false;
  watch_count = 0;
  for (unsigned launch = 0; launch < 40; launch++) {
    begin();
    good &= ready() && drive_stream(&plan) == CUDA_SUCCESS;
  }
  tap_ok(good && pinned_count == 128 && shared_words(0) == 0 && watch_count == 120,
         "before it has come they are not: more are made");
  capture_open = true;
  for (unsigned launch = 0; launch < 3 && good; launch++) {
    begin();
    const char *why = "";
    good = drive_begin(&plan, &why) && drive_stream(&plan) == CUDA_SUCCESS;
    if (!good)
      tap_ok(ticket_count == 0 && *why, "while a capture is open none are made: %s", why);
  }
  tap_ok(!good && pinned_count == 128, "and such a launch is refused before it has begun");
  capture_open = false;
  down_comes = true;
}

/* ---- brought in ---- */

static void test_brought(void) {
  begin();
  tap_ok(drive_fault_mixed(&plan) == CUDA_SUCCESS && !strcmp(brought[0], "") &&
             !memcmp(brought[1], "\0\0\0\0", 4),
         "blocks that are wholly on drives stay there");
  set_tier(0, 11, PIECE_HOST);
  set_tier(1, 5, PIECE_HOST);
  begin();
  set_tier(1, 3, PIECE_DEVICE); /* of the first chunk: elements 40149 to 56532 */
  tap_ok(drive_fault_mixed(&plan) == CUDA_SUCCESS && brought[0][0] && brought[0][4] &&
             brought[1][0] && brought[1][4],
         "a block with state on drives and on the device is brought in whole");
  tap_ok(!brought[0][11] && !brought[1][11] && pieces[0][11].tier == PIECE_DRIVE,
         "what no block names stays");
  begin();
  frame_count = 2 * 9 - 1;
  tap_ok(drive_fault_mixed(&plan) == CUDA_SUCCESS && brought[0][0] && brought[1][0] &&
             ranges[0].drive_rest == DRIVE_REST_MOST && ranges[1].drive_rest == DRIVE_REST_MOST,
         "a block that a ticket can't name is brought in, and its ranges stay off drives");
  const char *last = report.reasons[atomic_load(&report.reason_count) - 1];
  tap_ok(strstr(last, "staging of 1.06 MiB is too small for it in pieces of 64.0 KiB; set "
                      "OFFLOAD_NVME_STAGING to at least 1280KiB"),
         "how much staging it takes is told as it can be set: %s", last);
  frame_count = 64;
  begin();
  set_tier(2, 0, PIECE_DRIVE);
  tap_ok(drive_fault_mixed(&plan) == CUDA_SUCCESS && brought[2][0] && !brought[0][0] &&
             !brought[1][0],
         "parameters that lie on drives are brought in, and not their state");
  begin();
  tap_ok(drive_fault_launch(&plan) == CUDA_SUCCESS && !strncmp(brought[0], "xxxxxxxxx", 9) &&
             !brought[0][9] && !strncmp(brought[1], "xxxxxxxxx", 9) && !brought[1][9],
         "for the program's kernel all that the launch names is");
}

int main(void) {
  driver.cuMemcpyHtoDAsync_v2 = copy_up;
  driver.cuMemcpyDtoHAsync_v2 = copy_down;
  driver.cuMemcpyDtoDAsync_v2 = copy_between;
  driver.cuStreamWaitEvent = wait_event;
  driver.cuEventRecord = event_record;
  driver.cuStreamWaitValue32_v2 = wait_value;
  driver.cuStreamWriteValue32_v2 = write_value;
  make_ranges();
  test_stretches();
  test_missing();
  test_waiting();
  test_verdict();
  test_streamed();
  test_words();
  test_brought();
  return tap_done();
}
