package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Parquet's metadata are Thrift structs in the compact protocol. Before the
// Parquet library sees one, this file walks it, so that every length and count
// in it is known to fit into its bytes. Source: Thrift's compact protocol
// specification.

var errThrift = errors.New("metadata ends early or nests too deeply")

const maxThriftDepth = 24

// thriftStruct returns the length of the struct at the start of b.
func thriftStruct(b []byte, depth int) (int, error) {
	if depth > maxThriftDepth {
		return 0, errThrift
	}
	for at := 0; ; {
		if at >= len(b) {
			return 0, errThrift
		}
		head := b[at]
		at++
		if head == 0 {
			return at, nil
		}
		if head>>4 == 0 { // the field's number follows in full
			n, err := thriftVarint(b[at:])
			if err != nil {
				return 0, err
			}
			at += n
		}
		// a bool field has no bytes of its own
		if kind := head & 15; kind != thriftTrue && kind != thriftFalse {
			n, err := thriftValue(b[at:], kind, depth)
			if err != nil {
				return 0, err
			}
			at += n
		}
	}
}

// Type numbers of the compact protocol.
const (
	thriftTrue   = 1
	thriftFalse  = 2
	thriftByte   = 3
	thriftI16    = 4
	thriftI32    = 5
	thriftI64    = 6
	thriftDouble = 7
	thriftBinary = 8
	thriftList   = 9
	thriftSet    = 10
	thriftMap    = 11
	thriftSub    = 12
	thriftUUID   = 13
)

// thriftValue returns the length of a value of a kind at the start of b.
func thriftValue(b []byte, kind byte, depth int) (int, error) {
	fixed := func(n int) (int, error) {
		if n > len(b) {
			return 0, errThrift
		}
		return n, nil
	}
	switch kind {
	case thriftTrue, thriftFalse, thriftByte:
		return fixed(1)
	case thriftI16, thriftI32, thriftI64:
		return thriftVarint(b)
	case thriftDouble:
		return fixed(8)
	case thriftUUID:
		return fixed(16)
	case thriftBinary:
		length, n := binary.Uvarint(b)
		if n <= 0 || length > uint64(len(b)-n) {
			return 0, errThrift
		}
		return n + int(length), nil
	case thriftList, thriftSet:
		if len(b) == 0 {
			return 0, errThrift
		}
		count, at := uint64(b[0]>>4), 1
		if count == 15 {
			var n int
			if count, n = binary.Uvarint(b[1:]); n <= 0 {
				return 0, errThrift
			}
			at += n
		}
		return thriftElements(b, at, count, depth, b[0]&15)
	case thriftMap:
		count, at := binary.Uvarint(b)
		if at <= 0 {
			return 0, errThrift
		}
		if count == 0 {
			return at, nil
		}
		if at >= len(b) {
			return 0, errThrift
		}
		return thriftElements(b, at+1, count, depth, b[at]>>4, b[at]&15)
	case thriftSub:
		return thriftStruct(b, depth+1)
	}
	return 0, fmt.Errorf("metadata of unknown type %d", kind)
}

// thriftElements skips count groups of values of the given kinds from b[at:], and returns their
// end.
func thriftElements(b []byte, at int, count uint64, depth int, kinds ...byte) (int, error) {
	// an element takes a byte or more
	if depth++; depth > maxThriftDepth || at > len(b) || count > uint64(len(b)-at) {
		return 0, errThrift
	}
	for range count {
		for _, kind := range kinds {
			n, err := thriftValue(b[at:], kind, depth)
			if err != nil {
				return 0, err
			}
			at += n
		}
	}
	return at, nil
}

// thriftVarint returns the length of the varint at the start of b.
func thriftVarint(b []byte) (int, error) {
	if _, n := binary.Uvarint(b); n > 0 {
		return n, nil
	}
	return 0, errThrift
}
