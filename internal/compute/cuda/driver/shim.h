//go:build nvidia

// shim.h: the way from this package to the CUDA driver's library; see shim.c.
#ifndef GAD_SHIM_H
#define GAD_SHIM_H

// What gad_cuda_load returns when it cannot even call the driver; positive values are CUresult codes.
enum { GAD_CUDA_NO_LIBRARY = -1, GAD_CUDA_NOT_A_DRIVER = -2 };

// gad_cuda_load opens the driver's library by this name and initialises the driver.
// It returns 0 and the library's handle, or says why not in a line of at most size bytes.
int gad_cuda_load(const char *name, void **handle, char *why, int size);

// gad_nccl_init calls init, which is ncclCommInitRankConfig: it takes the 128 bytes of id by value.
int gad_nccl_init(void *init, void **comm, int ranks, const void *id, int rank, void *config);

#endif
