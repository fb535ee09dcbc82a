/* What a program may ask liboffload.so while it runs. A program needs none of it: the preload works without, and one that
   wants to ask looks the symbol up (dlsym(RTLD_DEFAULT, "offload_report")), so that it runs without the library too. */
#ifndef OFFLOAD_H
#define OFFLOAD_H
#ifdef __cplusplus
extern "C" {
#endif

/* Writes the report as it stands now to `path`, as OFFLOAD_REPORT does at exit (policy/report.schema.json). Counters only
   grow, except moved_bytes: two reports and a subtraction say what happened in between, of work that the program has
   waited for (the CPU step counts when it is done). From any thread, not from a signal handler; optimizer launches of other
   threads wait while it writes. 0, or an errno: EINVAL without a path, ENODATA in a process that has not initialised CUDA
   itself or with OFFLOAD_MODE=off, else why the file could not be written. */
int offload_report(const char *path);

#ifdef __cplusplus
}
#endif
#endif
