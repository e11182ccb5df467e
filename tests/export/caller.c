/* Calls packages as a C program does. Every mode prints what it found; the test compares. */
#define TILEWRIGHT_IMPLEMENTATION
#include "tilewright.h"

#include <sys/wait.h>
#include <time.h>

#define CHECK(what)                                                              \
  do {                                                                           \
    if (what) {                                                                  \
      fprintf(stderr, "%s\n", tw_error_text());                                  \
      exit(1);                                                                   \
    }                                                                            \
  } while (0)

typedef struct call {
  tw_package *package;
  size_t input_count, output_count, bytes[32]; /* of outputs: the most that they may have */
  tw_tensor inputs[32], outputs[32];
  int64_t shapes[64][TW_MAX_RANK], results[32 * TW_MAX_RANK];
} call;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void *block(size_t bytes) {
  void *memory = NULL;
  if (posix_memalign(&memory, 64, bytes + 64)) exit(2);
  return memory;
}

/* Inputs are a file each: rank, sizes (64 bits), elements. */
static void prepare(call *c, tw_package *package, char **files) {
  const tw_description *in = tw_inputs(package, &c->input_count);
  const tw_description *out = tw_outputs(package, &c->output_count);
  size_t k;
  int axis;
  c->package = package;
  for (k = 0; k < c->input_count; k++) {
    FILE *f = fopen(files[k], "rb");
    int64_t rank;
    size_t bytes = tw_dtype_bytes(in[k].dtype);
    tw_tensor *x = &c->inputs[k];
    if (!f || fread(&rank, 8, 1, f) != 1 ||
        fread(c->shapes[k], 8, (size_t)rank, f) != (size_t)rank) exit(2);
    for (axis = 0; axis < rank; axis++) bytes *= (size_t)c->shapes[k][axis];
    x->data = block(bytes);
    x->dtype = in[k].dtype;
    x->rank = (int)rank;
    x->shape = c->shapes[k];
    if (fread(x->data, 1, bytes, f) != bytes) exit(2);
    fclose(f);
  }
  for (k = 0; k < c->output_count; k++) {
    tw_tensor *y = &c->outputs[k];
    CHECK(tw_output_shape(package, c->inputs, c->input_count, k, c->shapes[32 + k]));
    c->bytes[k] = tw_dtype_bytes(out[k].dtype);
    for (axis = 0; axis < out[k].rank; axis++) c->bytes[k] *= (size_t)c->shapes[32 + k][axis];
    y->data = block(c->bytes[k]);
    y->dtype = out[k].dtype;
    y->rank = out[k].rank;
    y->shape = c->shapes[32 + k];
  }
}

static void run(call *c) {
  CHECK(tw_run_shapes(c->package, c->inputs, c->input_count, c->outputs, c->output_count, NULL,
                      c->results));
}

/* Each output: its dtype, rank and sizes (64 bits), elements. */
static void finish(call *c, const char *path) {
  FILE *f = fopen(path, "wb");
  const int64_t *shape = c->results;
  size_t k;
  if (!f) exit(2);
  for (k = 0; k < c->output_count; k++) {
    const tw_tensor *y = &c->outputs[k];
    int64_t head[2];
    size_t bytes = tw_dtype_bytes(y->dtype);
    int axis;
    head[0] = y->dtype;
    head[1] = y->rank;
    for (axis = 0; axis < y->rank; axis++) bytes *= (size_t)shape[axis];
    fwrite(head, 8, 2, f);
    fwrite(shape, 8, (size_t)y->rank, f);
    fwrite(y->data, 1, bytes, f);
    shape += y->rank;
  }
  if (fclose(f)) exit(2);
  for (k = 0; k < c->input_count; k++) free(c->inputs[k].data);
  for (k = 0; k < c->output_count; k++) free(c->outputs[k].data);
}

static void *again(void *given) {
  call *c = (call *)given;
  int k;
  for (k = 0; k < 50; k++) run(c);
  return NULL;
}

static void show(const char *path) {
  char line[4096];
  FILE *f = fopen(path, "r");
  while (f && fgets(line, sizeof line, f)) fputs(line, stdout);
  if (f) fclose(f);
}

static int descriptors(void) {
  int k, count = 0;
  for (k = 0; k < 1024; k++) count += fcntl(k, F_GETFD) >= 0;
  return count;
}

static long resident(void) {
  long size, pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (f && fscanf(f, "%ld %ld", &size, &pages) != 2) pages = 0;
  if (f) fclose(f);
  return pages;
}

/* The most memory that this process had, in bytes. */
static long peak(void) {
  char line[256];
  long kilobytes = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f)) sscanf(line, "VmHWM: %ld", &kilobytes);
  if (f) fclose(f);
  return 1024 * kilobytes;
}

static int later(const void *a, const void *b) {
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* caller MODE PACKAGE OUT COUNT INPUT…; `two`: the first input is another package's path. `time`
   and `copy` time calls, with weights mapped and copied; COUNT is the number of threads, 0: all.
   `start` says as JSON when the first result was there, by the system's clock. */
int main(int argc, char **argv) {
  static call calls[8], other;
  tw_package *package;
  const char *mode = argv[1];
  int count, k;
  double start = now(), opened, first, best = 1e30;
  if (argc < 5) return 2;
  count = atoi(argv[4]);
  CHECK(tw_open(argv[2], strcmp(mode, "copy") ? 0 : TW_COPY_WEIGHTS, &package));
  opened = now() - start;
  if (!strcmp(mode, "loads")) { /* so many loads and unloads, after some that warm up */
    int before = 0;
    long pages = 0;
    for (k = 0; k < count + 20; k++) {
      if (k == 20) { before = descriptors(); pages = resident(); }
      tw_close(package);
      CHECK(tw_open(argv[2], 0, &package));
      if (k % 10 == 0) {
        prepare(&calls[0], package, argv + 5);
        run(&calls[0]);
        finish(&calls[0], argv[3]);
      }
    }
    printf("descriptors %d pages %ld\n", descriptors() - before, resident() - pages);
  } else if (!strcmp(mode, "threads")) { /* the same inputs in every thread, each with its outputs */
    pthread_t threads[8];
    for (k = 0; k < 8; k++) {
      prepare(&calls[k], package, argv + 5);
      if (pthread_create(&threads[k], NULL, again, &calls[k])) return 2;
    }
    for (k = 0; k < 8; k++) pthread_join(threads[k], NULL);
    for (k = 0; k < 8; k++) {
      char path[4096];
      snprintf(path, sizeof path, "%s.%d", argv[3], k);
      finish(&calls[k], path);
    }
  } else if (!strcmp(mode, "two")) {
    tw_package *second;
    CHECK(tw_open(argv[5], 0, &second));
    CHECK(tw_set_threads(2));
    prepare(&calls[0], package, argv + 6);
    prepare(&other, second, argv + 6);
    run(&calls[0]);
    run(&other);
    show("/proc/self/maps");
    tw_close(package);
    run(&other);
    finish(&other, argv[3]);
    tw_close(second);
    return 0;
  } else if (!strcmp(mode, "fork")) {
    int status;
    prepare(&calls[0], package, argv + 5);
    run(&calls[0]); /* the parent's threads are there */
    if (!fork()) {
      memset(calls[0].outputs[0].data, 0, calls[0].bytes[0]);
      run(&calls[0]);
      finish(&calls[0], argv[3]);
      tw_close(package);
      _exit(tw_get_threads());
    }
    wait(&status);
    run(&calls[0]);
    printf("child %d\n", WEXITSTATUS(status));
  } else if (!strcmp(mode, "start")) {
    double at, times[30], end;
    prepare(&calls[0], package, argv + 5);
    if (count > 0) CHECK(tw_set_threads(count));
    start = now();
    run(&calls[0]);
    at = now();
    for (k = 0, end = at; k < 30 && end - at < 1e3; k++) {
      double t = now();
      run(&calls[0]);
      end = now();
      times[k] = end - t;
    }
    qsort(times, (size_t)k, sizeof *times, later);
    printf("{\"at\": %.6f, \"load\": %.3f, \"first\": %.3f, \"steady\": %.3f, \"peak\": %ld}\n",
           at / 1e3, opened, at - start, times[k / 2], peak());
  } else {
    prepare(&calls[0], package, argv + 5);
    if (count > 0) CHECK(tw_set_threads(count));
    start = now();
    run(&calls[0]);
    first = now() - start;
    for (k = 0; k < (mode[0] == 't' || mode[0] == 'c' ? 30 : strcmp(mode, "once") != 0); k++) {
      double t = now();
      run(&calls[0]);
      t = now() - t;
      if (t < best) best = t;
    }
    finish(&calls[0], argv[3]);
    if (!strcmp(mode, "maps") || !strcmp(mode, "once")) show("/proc/self/maps");
    else printf("%s open %.3f first %.3f best %.3f\n", tw_level(package), opened, first, best);
  }
  tw_close(package);
  return 0;
}
