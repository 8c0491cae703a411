//go:build nvidia

package driver

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unsafe"
)

// pinned is d.Pinned, freed after the test.
func pinned(t testing.TB, d *Device, n int) []byte {
	t.Helper()
	b, err := d.AllocPinned(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Unpin(b) })
	return b
}

// alloc is d.Alloc, released after the test.
func alloc(t testing.TB, d *Device, n int64) Ptr {
	t.Helper()
	p, err := d.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Release(p) })
	return p
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// floats are n pinned floats, and the same on the device.
func floats(t testing.TB, d *Device, n int) ([]float32, Ptr) {
	b := pinned(t, d, 4*n)
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), n), alloc(t, d, int64(4*n))
}

func at(x []float32) unsafe.Pointer { return unsafe.Pointer(&x[0]) }

func TestMemory(t *testing.T) {
	d := device(t)
	if p, err := d.Alloc(0); p != 0 || err != nil {
		t.Errorf("no bytes: %#x, %v", p, err)
	}
	d.Release(0)
	if b, err := d.AllocPinned(0); b != nil || err != nil {
		t.Errorf("no pinned bytes: %v, %v", b, err)
	}
	d.Unpin(nil)

	_, total := d.Free()
	if p, err := d.Alloc(2 * total); p != 0 || !errors.Is(err, ErrMemory) ||
		!strings.Contains(err.Error(), "free") {
		t.Errorf("twice the device's memory: %#x, %v", p, err)
	}
	const n = 1000
	a, b := alloc(t, d, n), alloc(t, d, n)
	if a%256 != 0 || b%256 != 0 {
		t.Errorf("%#x and %#x are not aligned", a, b)
	}
	src, dst := pinned(t, d, n), pinned(t, d, n)
	for i := range src {
		src[i] = byte(i * 7)
	}
	must(t, d.Set32(a, 0x01020304, n/4),
		d.CopyIn(a+8, unsafe.Pointer(&src[8]), n-16),
		d.CopyDev(b, a, n),
		d.CopyOut(unsafe.Pointer(&dst[0]), b, n),
		d.Sync())
	want := bytes.Repeat([]byte{4, 3, 2, 1}, n/4)
	copy(want[8:n-8], src[8:n-8])
	if !bytes.Equal(dst, want) {
		t.Errorf("got %v\nwant %v", dst, want)
	}

	// An error of a call that returns none shows at the next Sync, once.
	d.Release(b + 1)
	if err := d.Sync(); err == nil || !strings.Contains(err.Error(), "releasing") {
		t.Errorf("Sync after a bad Release: %v", err)
	}
	must(t, d.Sync())
}

// addArgs are add_f32's: y[i] += x[i].
func addArgs(y, x *Ptr, n *int64) []unsafe.Pointer {
	return []unsafe.Pointer{unsafe.Pointer(y), unsafe.Pointer(x), unsafe.Pointer(n)}
}

func TestLaunch(t *testing.T) {
	d := device(t)
	k, err := d.Kernel("add_f32")
	must(t, err)
	if again, _ := d.Kernel("add_f32"); again != k {
		t.Error("a second Kernel for one name")
	}
	if _, err := d.Kernel("no_such_kernel"); err == nil || !strings.Contains(err.Error(), `"no_such_kernel"`) {
		t.Errorf("unknown kernel: %v", err)
	}
	const n = 1000
	n64 := int64(n)
	x, px := floats(t, d, n)
	y, py := floats(t, d, n)
	for i := range x {
		x[i], y[i] = float32(i), 0.5
	}
	must(t, d.CopyIn(px, at(x), 4*n), d.CopyIn(py, at(y), 4*n),
		d.Launch(k, n, 1, 1, 256, 0, addArgs(&py, &px, &n64)...),
		d.CopyOut(at(y), py, 4*n), d.Sync())
	for i := range y {
		if y[i] != float32(i)+0.5 {
			t.Fatalf("y[%d] = %v", i, y[i])
		}
	}

	// Refused, and the device goes on.
	for name, err := range map[string]error{
		"threads": d.Launch(k, 1, 1, 1, 4096, 0, addArgs(&py, &px, &n64)...),
		"blocks":  d.Launch(k, 0, 1, 1, 256, 0, addArgs(&py, &px, &n64)...),
		"shared": d.Launch(k, 1, 1, 1, 256, d.Info().SharedPerBlock+1,
			addArgs(&py, &px, &n64)...),
		"arguments": d.Launch(k, 1, 1, 1, 256, 0, addArgs(&py, &px, &n64)[:2]...),
	} {
		if name == "arguments" && k.params < 0 {
			continue // and then the driver would have read beyond them
		}
		if err == nil || !strings.Contains(err.Error(), `"add_f32"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, d.Sync())
	// More shared memory than a kernel may ask for by itself.
	must(t, d.Launch(k, 1, 1, 1, 256, 64<<10, addArgs(&py, &px, &n64)...), d.Sync())
}

func TestCapture(t *testing.T) {
	d := device(t)
	k, err := d.Kernel("add_f32")
	must(t, err)
	const n = 512
	n64 := int64(n)
	x, px := floats(t, d, n)
	y, py := floats(t, d, n)
	for i := range x {
		x[i] = 1
	}
	must(t, d.Set32(py, 0, n), d.Sync())
	g, err := d.Capture(func() error {
		return errors.Join(
			d.CopyIn(px, at(x), 4*n),
			d.Launch(k, n, 1, 1, 256, 0, addArgs(&py, &px, &n64)...),
			d.CopyOut(at(y), py, 4*n))
	})
	must(t, err)
	must(t, d.Sync())
	n64 = 0 // the graph has its own copy
	check := func(want float32) {
		t.Helper()
		for i := range y {
			if y[i] != want {
				t.Fatalf("y[%d] = %v, not %v", i, y[i], want)
			}
		}
	}
	must(t, g.Launch(), d.Sync())
	check(1)
	for i := range x {
		x[i] = 10 // read at each launch
	}
	must(t, g.Launch(), g.Launch(), d.Sync())
	check(21)
	must(t, g.Close(), g.Close())

	// A capture that fails or panics leaves the device usable.
	mine := errors.New("mine")
	if g, err := d.Capture(func() error { return mine }); g != nil || !errors.Is(err, mine) {
		t.Errorf("%v, %v", g, err)
	}
	func() {
		defer func() {
			if r := recover(); r != mine {
				t.Errorf("recovered %v", r)
			}
		}()
		d.Capture(func() error { panic(mine) })
	}()
	must(t, d.Set32(py, 0, n), d.CopyOut(at(y), py, 4*n), d.Sync())
	check(0)
}

func TestEvents(t *testing.T) {
	d := device(t)
	a, err := d.Event()
	must(t, err)
	b, err := d.Event()
	must(t, err)
	p := alloc(t, d, 4<<20)
	must(t, a.Record(), d.Set32(p, 1, 1<<20), b.Record())
	ms, err := b.Since(a)
	must(t, err)
	if ms < 0 || ms > 10_000 {
		t.Errorf("%v ms", ms)
	}
	must(t, a.Close(), b.Close(), b.Close())
}

// BenchmarkLaunch is the host's part of a launch. On an emulated device, which runs what it queued,
// it says nothing.
func BenchmarkLaunch(b *testing.B) {
	d := device(b)
	k, err := d.Kernel("add_f32")
	must(b, err)
	px, py, n := alloc(b, d, 4096), alloc(b, d, 4096), int64(16)
	must(b, d.Set32(px, 0, 1024), d.Set32(py, 0, 1024))
	args := addArgs(&py, &px, &n)
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Launch(k, 1, 1, 1, 32, 0, args...); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	must(b, d.Sync())
}
