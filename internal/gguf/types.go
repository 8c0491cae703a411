package gguf

import (
	"fmt"
	"slices"
	"strings"
)

// Type is the type of a tensor's elements, by ggml's number.
type Type uint32

// The types that a Reader decodes. F32, F16, BF16 and Q8_0 can be written too.
const (
	F32    Type = 0
	F16    Type = 1
	Q4_0   Type = 2
	Q4_1   Type = 3
	Q5_0   Type = 6
	Q5_1   Type = 7
	Q8_0   Type = 8 // blocks of 32 elements: a scale in binary16, and 32 signed bytes
	Q2_K   Type = 10
	Q3_K   Type = 11
	Q4_K   Type = 12
	Q5_K   Type = 13
	Q6_K   Type = 14
	IQ4_NL Type = 20
	IQ4_XS Type = 23
	BF16   Type = 30
)

// layout is how a type stores its elements: in blocks of elems elements and bytes bytes.
type layout struct {
	name   string // as llama.cpp prints it
	elems  int
	bytes  int                            // 0: cannot be read
	decode func(dst []float32, at []byte) // decodes whole blocks; nil: safetensors does it
}

// layouts lists all types that files may have, by number (ggml.h of the ggml repository).
var layouts = map[Type]layout{
	F32:    {"f32", 1, 4, nil},
	F16:    {"f16", 1, 2, nil},
	BF16:   {"bf16", 1, 2, nil},
	Q4_0:   {"q4_0", 32, 2 + 16, blocks(32, 18, q4_0)},
	Q4_1:   {"q4_1", 32, 4 + 16, blocks(32, 20, q4_1)},
	Q5_0:   {"q5_0", 32, 2 + 4 + 16, blocks(32, 22, q5_0)},
	Q5_1:   {"q5_1", 32, 4 + 4 + 16, blocks(32, 24, q5_1)},
	Q8_0:   {"q8_0", 32, 2 + 32, blocks(32, 34, q8_0)},
	Q2_K:   {"q2_K", 256, 16 + 64 + 4, blocks(256, 84, q2K)},
	Q3_K:   {"q3_K", 256, 32 + 64 + 12 + 2, blocks(256, 110, q3K)},
	Q4_K:   {"q4_K", 256, 4 + 12 + 128, blocks(256, 144, q4K)},
	Q5_K:   {"q5_K", 256, 4 + 12 + 32 + 128, blocks(256, 176, q5K)},
	Q6_K:   {"q6_K", 256, 128 + 64 + 16 + 2, blocks(256, 210, q6K)},
	IQ4_NL: {"iq4_nl", 32, 2 + 16, blocks(32, 18, iq4NL)},
	IQ4_XS: {"iq4_xs", 256, 2 + 2 + 4 + 128, blocks(256, 136, iq4XS)},

	4: {name: "q4_2"}, 5: {name: "q4_3"}, 9: {name: "q8_1"}, 15: {name: "q8_K"},
	16: {name: "iq2_xxs"}, 17: {name: "iq2_xs"},
	18: {name: "iq3_xxs"}, 19: {name: "iq1_s"}, 21: {name: "iq3_s"}, 22: {name: "iq2_s"},
	24: {name: "i8"}, 25: {name: "i16"},
	26: {name: "i32"}, 27: {name: "i64"}, 28: {name: "f64"}, 29: {name: "iq1_m"},
	31: {name: "q4_0_4_4"}, 32: {name: "q4_0_4_8"},
	33: {name: "q4_0_8_8"}, 34: {name: "tq1_0"}, 35: {name: "tq2_0"}, 36: {name: "iq4_nl_4_4"},
	37: {name: "iq4_nl_4_8"},
	38: {name: "iq4_nl_8_8"}, 39: {name: "mxfp4"}, 40: {name: "nvfp4"}, 41: {name: "q1_0"},
	42: {name: "q2_0"},
}

// Block returns the number of elements in a block of the type. A row must be a multiple of it.
func (t Type) Block() int { return max(1, layouts[t].elems) }

// String returns the name of the type as llama.cpp prints it.
func (t Type) String() string {
	if l, ok := layouts[t]; ok {
		return l.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// readable lists the types that can be read, for errors.
func readable() string {
	var names []string
	for _, l := range layouts {
		if l.bytes > 0 {
			names = append(names, l.name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
