// Every wrapped instruction of device.cuh, by one warp, for tests: what it makes of
// in is written to out. The places of both are in ../fragments_test.go, with the
// tables that a device, the emulated one and the PTX's interpreter must agree with.
#include "device.cuh"

KERNEL(32, probe, u32 *out, const u32 *in) {
    int lane = threadIdx.x;
    u8 *tile = shared(), *first = tile + 512, *second = first + 512; // 16 bytes a lane in each
    const u32 *chunks = in + 544;
    copy_async(first + 16 * lane, chunks + 4 * lane, in[800 + lane] != 0);
    copy_commit();
    copy_async(second + 16 * lane, chunks + 128 + 4 * lane, in[832 + lane] != 0);
    copy_commit();

    float x = __uint_as_float(in[2 * lane]), y = __uint_as_float(in[2 * lane + 1]);
    out[lane] = pack2(x, y);
    out[32 + lane] = from_float<bf16>(x).bits;
    out[64 + lane] = __float_as_uint(fast_exp2(x));
    out[96 + lane] = __float_as_uint(fast_rcp(x));

    u32 a[4], b[2];
    float d[4];
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = in[64 + 4 * lane + i];
#pragma unroll
    for (int i = 0; i < 2; i++) b[i] = in[192 + 2 * lane + i];
#pragma unroll
    for (int i = 0; i < 4; i++) d[i] = __uint_as_float(in[256 + 4 * lane + i]);
    mma(d, a, b);
#pragma unroll
    for (int i = 0; i < 4; i++) out[128 + 4 * lane + i] = __float_as_uint(d[i]);

    *(uint4 *)(tile + 16 * lane) = *(const uint4 *)(in + 384 + 4 * lane);
    __syncwarp();
    const u8 *row = tile + 16 * in[512 + lane];
    ldmatrix4(a, row);
#pragma unroll
    for (int i = 0; i < 4; i++) out[256 + 4 * lane + i] = a[i];
    ldmatrix4t(a, row);
#pragma unroll
    for (int i = 0; i < 4; i++) out[384 + 4 * lane + i] = a[i];

    out[768 + lane] = __float_as_uint(from_half((u16)(in[2 * lane] >> 16)));
    out[800 + lane] = to_half(y);
    out[832 + lane] = __float_as_uint(product(x, y) + x);

    copy_wait<1>();
    *(uint4 *)(out + 512 + 4 * lane) = *(const uint4 *)(first + 16 * lane);
    copy_wait<0>();
    *(uint4 *)(out + 640 + 4 * lane) = *(const uint4 *)(second + 16 * lane);
}
