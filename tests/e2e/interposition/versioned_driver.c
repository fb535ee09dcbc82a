/* Stands for a driver whose symbols carry versions: just enough of one to be found. */
int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuInit(unsigned flags) {
  return flags ? 1 : 0;
}
int cuDeviceGet(int *device, int ordinal) {
  return *device = ordinal, 0;
}
