// Package philox is a counter-based random number generator: a random number is a function of a key
// and a counter. There is no state to save, and a draw does not depend on earlier draws.
//
// Philox4x32-10, Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011; the constants are the paper's.
package philox

import (
	"math"
	"math/bits"
)

const (
	mul0, mul1   = 0xD2511F53, 0xCD9E8D57
	weyl0, weyl1 = 0x9E3779B9, 0xBB67AE85
	rounds       = 10
)

// Block returns the generator's 128 random bits for a 64-bit key and a 128-bit counter.
func Block(key [2]uint32, ctr [4]uint32) [4]uint32 {
	k0, k1 := key[0], key[1]
	for range rounds {
		h0, l0 := bits.Mul32(mul0, ctr[0])
		h1, l1 := bits.Mul32(mul1, ctr[2])
		ctr = [4]uint32{h1 ^ ctr[1] ^ k0, l1, h0 ^ ctr[3] ^ k1, l0}
		k0 += weyl0
		k1 += weyl1
	}
	return ctr
}

// Stream names the purpose of a draw. Different streams never share a counter.
type Stream uint32

// The streams of gad.
const (
	Rollout     Stream = iota + 1 // a: step, b: row<<16|sample, c: position
	Init                          // a: parameter, b: element block
	Shuffle                       // a: epoch, b: element
	Replay                        // a: step, b: draw
	Data                          // generated data sets
	Bootstrap                     // a: replicate, b: draw, c: what is drawn
	Environment                   // a: step, b: row
	Branches                      // a: step, b: row<<16|tree, c: draw
	Redraw                        // for a Rollout draw that fell on no token; a, b, c as there
)

// Uint64 returns 64 random bits: draw (a, b, c) of a stream under a seed. Of a the low 32 bits
// count, of b all 64, of c the low 27.
func Uint64(seed uint64, s Stream, a, b, c uint64) uint64 {
	r := Block([2]uint32{uint32(seed), uint32(seed >> 32)},
		[4]uint32{uint32(b), uint32(b >> 32), uint32(a), uint32(s)<<27 | uint32(c)&(1<<27-1)})
	return uint64(r[0]) | uint64(r[1])<<32
}

// Float64 returns draw (a, b, c) as a number uniform in [0, 1) with 53 bits.
func Float64(seed uint64, s Stream, a, b, c uint64) float64 {
	return float64(Uint64(seed, s, a, b, c)>>11) / (1 << 53)
}

// Norm returns draw (a, b, c) as a standard normal number (Box and Muller 1958).
func Norm(seed uint64, s Stream, a, b, c uint64) float64 {
	r := Block([2]uint32{uint32(seed), uint32(seed >> 32)},
		[4]uint32{uint32(b), uint32(b >> 32), uint32(a), uint32(s)<<27 | uint32(c)&(1<<27-1)})
	u := (float64(uint64(r[0])|uint64(r[1])<<32>>11<<11) + 1) / (1 << 64) // (0, 1]
	v := float64(uint64(r[2])|uint64(r[3])<<32) / (1 << 64)
	return math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v)
}

// IntN returns draw (a, b, c) as an integer uniform in [0, n); n must be positive.
func IntN(n int, seed uint64, s Stream, a, b, c uint64) int {
	hi, _ := bits.Mul64(Uint64(seed, s, a, b, c), uint64(n))
	return int(hi)
}
