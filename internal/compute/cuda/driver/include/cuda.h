/* cuda.h: put this folder in front of the toolkit's include path (scripts/gpu/headers.sh prints the
 * flags) to compile gorgonia.org/cu v0.9.6 against CUDA 13.
 *
 * CUDA 13 gave five calls that cu uses new parameters, and points their plain names at the new
 * versions. The driver goes on exporting the old entry points; only the header stopped declaring
 * them. This header includes the toolkit's and declares them again. With CUDA 12 it does nothing. */
#ifndef GAD_CUDA_H
#define GAD_CUDA_H
#include_next <cuda.h>

#if CUDA_VERSION >= 13000
/* Not for its parameters: the new name is missing in drivers before CUDA 12.8. */
#undef cuEventElapsedTime
CUresult CUDAAPI cuEventElapsedTime(float *, CUevent, CUevent);

#undef cuCtxCreate
#undef cuMemPrefetchAsync
#undef cuMemAdvise
#undef cuGraphAddDependencies
#undef cuGraphGetEdges
#define cuCtxCreate cuCtxCreate_v2
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr, size_t, CUdevice, CUstream);
CUresult CUDAAPI cuMemAdvise(CUdeviceptr, size_t, CUmem_advise, CUdevice);
CUresult CUDAAPI cuGraphAddDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
CUresult CUDAAPI cuGraphGetEdges(CUgraph, CUgraphNode *, CUgraphNode *, size_t *);
#endif

#endif
