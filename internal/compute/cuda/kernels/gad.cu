// All kernels of the CUDA backend: one program for each architecture.
#include "device.cuh"

#include "elementwise.cu"
#include "conv.cu"
#include "norm.cu"
#include "gemm.cu"
#include "quant.cu"
#include "optim.cu"
#include "head.cu"
#include "sample.cu"
#include "attention.cu"
#include "decode.cu"
#include "probe.cu"
