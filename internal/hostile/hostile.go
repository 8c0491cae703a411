// Package hostile damages files and feeds them to a reader in tests: row 12 of doc/reliability.md.
// A reader refuses a damaged file or reads it; it never panics, and its time and memory are
// bounded.
package hostile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The bounds of row 12.
const (
	maxTime = time.Second
	maxHeap = 64 << 20 // bytes, and twice the file
)

// Format is a file format and its reader.
type Format struct {
	Name string // in the line that gives the figures

	// Small is a good file. The reader is given every proper prefix of it, and every file
	// with one bit of Flip changed; of very many, go test takes an evenly spaced sample.
	Small []byte
	Flip  [][2]int // ranges of bytes of Small, [begin, end); nil: all of it

	// Whole says that no proper prefix of Small may be accepted. Where a format
	// has optional white space at its end, Small must have none.
	Whole bool

	Seeds [][]byte // more good files, which are damaged at random as Small is
	Words []string // pieces of the format's syntax, which are written over a seed

	// Read reads a file from its bytes, as far as a caller of the package does, and
	// returns the reader's error. If the reader accepts a file and returns something
	// wrong, Read itself fails the test.
	Read func(text []byte) error

	Prefix string // of each line of each error
}

// Long reports whether GAD_LONG is set: whole series and all shapes run, as .ci/run long does, and
// not a share of them.
func Long() bool { return os.Getenv("GAD_LONG") != "" }

// Share returns how many of n faults or shapes of one kind a test tries: a quarter, at least two;
// all n with GAD_LONG.
func Share(n int) int {
	if Long() {
		return n
	}
	return min(n, max(2, n/4))
}

// InTurn reports whether a test tries way number way (from 0) on arm number arm. With GAD_LONG it
// tries all ways on all arms, else each way on every nth arm.
func InTurn(arm, way, n int) bool { return Long() || (arm+way)%n == 0 }

// cases returns the number of random changes for a format, and the number of prefixes and of bit
// flips above which only a sample is tried: Share of 1,300, or 300 with -short; if GAD_CASES is
// set, that number of changes, and no limit.
func cases() (random, systematic int) {
	if n, err := strconv.Atoi(os.Getenv("GAD_CASES")); err == nil {
		return n, math.MaxInt
	}
	if testing.Short() {
		return 300, 300
	}
	return Share(1300), Share(1300)
}

// stride returns the smallest step that takes at most most of n things, made odd so that a series
// of bits visits all eight positions in a byte.
func stride(n, most int) int {
	if n <= most {
		return 1
	}
	return (n+most-1)/most | 1
}

// Try feeds the reader every prefix, every bit flip and the random changes. It fails the test for
// each case that panics, takes longer than maxTime, allocates too much, or is refused with an error
// other than lines that begin with Prefix. It logs the figures. What it counts is the process's
// memory, so nothing runs beside it.
func (f Format) Try(t *testing.T) {
	t.Helper()
	for i, seed := range append([][]byte{f.Small}, f.Seeds...) {
		if err := f.Read(seed); err != nil {
			t.Fatalf("%s: good file %d: %v", f.Name, i, err)
		}
	}
	c := counts{Format: f, t: t}
	random, most := cases()
	for n := 0; n < len(f.Small); n += stride(len(f.Small), most) {
		if c.try(f.Small[:n], "prefix", n) == nil && f.Whole {
			t.Errorf("%s: the first %d of %d bytes were read as a whole file", f.Name, n,
				len(f.Small))
		}
	}
	flip := f.Flip
	if flip == nil {
		flip = [][2]int{{0, len(f.Small)}}
	}
	bits := 0
	for _, span := range flip {
		bits += 8 * (span[1] - span[0])
	}
	bad := bytes.Clone(f.Small)
	for _, span := range flip {
		for bit := 8 * span[0]; bit < 8*span[1]; bit += stride(bits, most) {
			bad[bit/8] ^= 1 << (bit % 8)
			_ = c.try(bad, "bit", bit)
			bad[bit/8] ^= 1 << (bit % 8)
		}
	}
	seeds := append([][]byte{f.Small}, f.Seeds...)
	refused, read := c.refused, c.read
	for i := range random {
		r := rand.New(rand.NewPCG(uint64(i), 12)) // case i is the same whatever their number
		_ = c.try(Mutate(r, seeds[i%len(seeds)], seeds, f.Words), "change", i)
	}
	if random >= 300 && (c.refused == refused || c.read == read) {
		t.Errorf("%s: of %d random changes %d were refused and %d read: they do not test both ways",
			f.Name, random, c.refused-refused, c.read-read)
	}
	t.Logf("row 12: %s: %s cases, %d panics, slowest %v, heap %.1f MiB (%s refused, %s read)",
		f.Name, thousands(c.refused+c.read+c.panics),
		c.panics, c.slowest.Round(100*time.Microsecond), float64(c.most)/(1<<20),
		thousands(c.refused), thousands(c.read))
}

// counts holds the results of one format's cases.
type counts struct {
	Format
	t                     *testing.T
	refused, read, panics int
	slowest               time.Duration
	most                  uint64 // bytes allocated by one case
}

// try reads one damaged file and checks time, memory and error; kind and number name the case in a
// failure. It returns the reader's error.
func (c *counts) try(text []byte, kind string, number int) error {
	c.t.Helper()
	before := TotalAlloc()
	took, err := c.once(text)
	used := TotalAlloc() - before
	// A busy machine or a garbage collection is not the reader's fault: measure again.
	for again := 0; again < 3 && took > maxTime; again++ {
		runtime.GC()
		retook, _ := c.once(text)
		took = min(took, retook)
	}
	c.slowest, c.most = max(c.slowest, took), max(c.most, used)
	complain := func(format string, args ...any) {
		c.t.Helper()
		c.t.Errorf("%s: %s %d: %s: %.300q", c.Name, kind, number, fmt.Sprintf(format, args...),
			text)
	}
	var p *panicked
	switch {
	case err == nil:
		c.read++
	case isPanic(err, &p):
		c.panics++
		complain("panic: %v\n%s", p.value, p.stack)
	default:
		c.refused++
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !strings.HasPrefix(line, c.Prefix) {
				complain("the error is not one line of %q: %q", c.Prefix, err)
				break
			}
		}
		if n := len(err.Error()); n > 32<<10 {
			complain("an error of %d bytes", n)
		}
	}
	if took > maxTime {
		complain("took %v", took)
	}
	if used > maxHeap+2*uint64(len(text)) {
		complain("allocated %d bytes for a file of %d", used, len(text))
	}
	return err
}

// panicked is the error that stands for a panic of the reader.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprint(p.value) }

// isPanic reports whether err itself is a *panicked, and stores it in p. It does not unwrap: an
// error that a reader returned is not a panic because it wraps one.
func isPanic(err error, p **panicked) (ok bool) {
	*p, ok = err.(*panicked)
	return ok
}

// once calls Read and returns its duration and its error, or a *panicked.
func (c *counts) once(text []byte) (took time.Duration, err error) {
	defer func(start time.Time) { took = time.Since(start) }(time.Now())
	defer func() {
		if v := recover(); v != nil {
			err = &panicked{v, debug.Stack()}
		}
	}()
	return 0, c.Read(text)
}

// TotalAlloc returns the number of bytes that the process has allocated on its heap so far. The
// difference over a call bounds the bytes that the call held at any time; it is exact to some
// kilobytes.
func TotalAlloc() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// Mutate returns a damaged copy of seed. Each of one to three changes cuts it, flips bits, changes
// a byte, writes an extreme integer in binary or in digits, removes a piece, or inserts a piece of
// one of seeds or one of words.
func Mutate(r *rand.Rand, seed []byte, seeds [][]byte, words []string) []byte {
	text := bytes.Clone(seed)
	if len(text) == 0 {
		return text
	}
	for range 1 + r.IntN(3) {
		at := r.IntN(len(text))
		n := min(1+r.IntN(64), len(text)-at)
		switch r.IntN(11) {
		case 0:
			text = text[:at]
		case 1:
			text = text[at:]
		case 2, 3:
			for range 1 + r.IntN(8) {
				text[r.IntN(len(text))] ^= 1 << r.IntN(8)
			}
		case 4:
			text[at] = byte(r.Uint32())
		case 5:
			if at &^= 3; at+8 <= len(text) {
				binary.LittleEndian.PutUint64(text[at:],
					pick(r, []uint64{1<<63 - 1, 1 << 40, 1<<64 - 1, 1<<31 - 1, 1 << 31, 0}))
			}
		case 6:
			if at &^= 3; at+4 <= len(text) {
				binary.LittleEndian.PutUint32(text[at:],
					pick(r, []uint32{1<<31 - 1, 1<<32 - 1, 1 << 31, 0, 1 << 20, uint32(len(text))}))
			}
		case 7:
			other := pick(r, seeds)
			from := r.IntN(len(other))
			text = splice(text, at, min(n, r.IntN(n+1)), other[from:min(from+n, len(other))])
		case 8:
			text = splice(text, at, n, nil)
		case 9:
			if i := bytes.IndexAny(text[at:], "0123456789"); i >= 0 { // a number, from here on
				at += i
				for n = 0; at+n < len(text) && text[at+n] >= '0' && text[at+n] <= '9'; n++ {
				}
				text = splice(text, at, n,
					[]byte(
						pick(r,
							[]string{"9223372036854775807", "9223372036854775808", "1099511627776",
								"-1",
								"0", "1e9", "1.5", "4294967296", "00"})))
			}
		case 10:
			if len(words) > 0 {
				text = splice(text, at, r.IntN(2)*n, []byte(pick(r, words)))
			}
		}
		if len(text) == 0 {
			break
		}
	}
	return text
}

// pick returns a random element of list, which is not empty.
func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// splice replaces the n bytes of text from at on by with.
func splice(text []byte, at, n int, with []byte) []byte {
	return append(append(text[:at:at], with...), text[at+n:]...)
}

// thousands formats 2417 as 2,417.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Put writes a file and returns its path.
func Put(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// AllocBytes returns the number of bytes that f allocates on the heap. It is exact, since it stops
// the world.
func AllocBytes(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
