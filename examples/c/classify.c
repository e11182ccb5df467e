/* Calls a package from C.

       python -m examples.make_package classifier.twp
       unzip -p classifier.twp include/tilewright.h > tilewright.h
       cc -I. examples/c/classify.c -o classify -ldl -pthread
       ./classify classifier.twp 3
*/
#define TILEWRIGHT_IMPLEMENTATION
#include "tilewright.h"

int main(int argc, char **argv) {
  tw_package *package;
  int64_t rows = argc > 2 ? atoll(argv[2]) : 1, k;
  int64_t in_shape[2], out_shape[2];
  const tw_description *x, *y;
  tw_tensor in, out;
  size_t bytes;
  if (argc < 2 || tw_open(argv[1], TW_VERIFY_WEIGHTS, &package)) {
    fprintf(stderr, "%s\n", argc < 2 ? "classify PACKAGE [ROWS]" : tw_error_text());
    return 1;
  }
  x = tw_inputs(package, NULL);
  y = tw_outputs(package, NULL);
  printf("%s: %s[%s, %s] -> %s[%s, %s]\n", tw_level(package), x->name, x->sizes[0], x->sizes[1],
         y->name, y->sizes[0], y->sizes[1]);

  in_shape[0] = rows;
  in_shape[1] = x->shape[1];
  in.dtype = x->dtype;
  in.rank = x->rank;
  in.shape = in_shape;
  in.data = malloc((size_t)(rows * in_shape[1]) * sizeof(float));
  for (k = 0; k < rows * in_shape[1]; k++) ((float *)in.data)[k] = (float)(k % 7) - 3;

  if (tw_output_shape(package, &in, 1, 0, out_shape) ||
      tw_workspace_bytes(package, &in, 1, &bytes)) {
    fprintf(stderr, "%s\n", tw_error_text());
    return 1;
  }
  out.dtype = y->dtype;
  out.rank = y->rank;
  out.shape = out_shape;
  out.data = malloc((size_t)(out_shape[0] * out_shape[1]) * sizeof(float));
  if (tw_run(package, &in, 1, &out, 1, NULL)) {
    fprintf(stderr, "%s\n", tw_error_text());
    return 1;
  }
  for (k = 0; k < rows * out_shape[1]; k++)
    printf("%.6f%c", ((float *)out.data)[k], (k + 1) % out_shape[1] ? ' ' : '\n');
  free(in.data);
  free(out.data);
  tw_close(package);
  return 0;
}
