// As much of a CUDA driver as tells that there is one device.
int cuInit(unsigned flags) { return flags != 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
