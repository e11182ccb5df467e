/* Calls a package with nothing but C and the header, on any system: portable PACKAGE OUT THREADS
   INPUT… Inputs are files: rank, sizes (64 bits), elements. Results are written to OUT. */
#define TILEWRIGHT_IMPLEMENTATION
#include "tilewright.h"

#define MOST 8

static int refused(void) {
  fprintf(stderr, "%s\n", tw_error_text());
  return 1;
}

int main(int argc, char **argv) {
  tw_package *package;
  tw_tensor inputs[MOST], outputs[MOST];
  int64_t shapes[2 * MOST][TW_MAX_RANK], rank;
  size_t bytes[MOST], in_count, out_count, k;
  const tw_description *in, *out;
  FILE *f;
  int axis, round;
  if (argc < 4) return 2;
  for (round = 0; round < 20; round++) { /* loading leaves nothing that the next would meet */
    if (tw_open(argv[1], TW_VERIFY_WEIGHTS, &package)) return refused();
    if (round < 19) tw_close(package);
  }
  in = tw_inputs(package, &in_count);
  out = tw_outputs(package, &out_count);
  if (in_count > MOST || out_count > MOST || argc != 4 + (int)in_count) return 2;
  for (k = 0; k < in_count; k++) {
    size_t size = tw_dtype_bytes(in[k].dtype);
    f = fopen(argv[4 + k], "rb");
    if (!f || fread(&rank, 8, 1, f) != 1 || rank > TW_MAX_RANK ||
        fread(shapes[k], 8, (size_t)rank, f) != (size_t)rank) return 2;
    for (axis = 0; axis < rank; axis++) size *= (size_t)shapes[k][axis];
    inputs[k].data = malloc(size + 1);
    inputs[k].dtype = in[k].dtype;
    inputs[k].rank = (int)rank;
    inputs[k].shape = shapes[k];
    if (!inputs[k].data || fread(inputs[k].data, 1, size, f) != size) return 2;
    fclose(f);
  }
  for (k = 0; k < out_count; k++) {
    if (tw_output_shape(package, inputs, in_count, k, shapes[MOST + k])) return refused();
    bytes[k] = tw_dtype_bytes(out[k].dtype);
    for (axis = 0; axis < out[k].rank; axis++) bytes[k] *= (size_t)shapes[MOST + k][axis];
    outputs[k].data = malloc(bytes[k] + 1);
    outputs[k].dtype = out[k].dtype;
    outputs[k].rank = out[k].rank;
    outputs[k].shape = shapes[MOST + k];
    if (!outputs[k].data) return 2;
  }
  if (tw_set_threads(atoi(argv[3]))) return refused();
  for (round = 0; round < 50; round++)
    if (tw_run(package, inputs, in_count, outputs, out_count, NULL)) return refused();
  f = fopen(argv[2], "wb");
  if (!f) return 2;
  for (k = 0; k < out_count; k++) fwrite(outputs[k].data, 1, bytes[k], f);
  if (fclose(f)) return 2;
  printf("%s %d\n", tw_level(package), tw_get_threads());
  tw_close(package);
  if (!tw_open("no such package", 0, &package)) return 3;
  printf("%s\n", tw_error_text());
  for (k = 0; k < in_count; k++) free(inputs[k].data);
  for (k = 0; k < out_count; k++) free(outputs[k].data);
  return 0;
}
