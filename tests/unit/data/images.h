/* Parameters of the kernels of images.cu: one that a cubin's older attribute describes, and one of more than 4 KiB. */
struct wide {
  double *list[100];
  int n;
};
struct huge {
  char bytes[6000];
  double *pointer;
};
