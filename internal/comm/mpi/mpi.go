//go:build mpi && (linux || darwin)

package mpi

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"gad/internal/comm"
)

// Built reports whether Open can succeed.
const Built = true

// Constants that all binary interfaces share; maxErrorString is the largest of theirs.
const (
	success        = 0
	anySource      = -1
	maxErrorString = 512
)

// kind is one binary interface of MPI.
type kind struct {
	names                         []string // of the library's file, in order of preference
	symbols                       []string // whose addresses are the handles, if not constants
	world, byteType, errorsReturn uintptr  // the handles
	serialized                    int32    // MPI_THREAD_SERIALIZED
	// major version that MPI_Abi_get_version must return; 0 if there is no such function
	version int32
	install string // advice for errors
}

// openMPI is the interface of Open MPI's mpi.h, versions 4 and 5.
var openMPI = kind{
	names:      []string{"libmpi.so.40", "libmpi.40.dylib", "libmpi.dylib"},
	symbols:    []string{"ompi_mpi_comm_world", "ompi_mpi_byte", "ompi_mpi_errors_return"},
	serialized: 2,
	install:    "install Open MPI 4 or 5 (Debian: openmpi-bin)",
}

// standard is the ABI of MPI-5.0, chapter 20, as in mpi_abi.h. Its drafts, libmpi_abi.so.0, have
// other constants.
var standard = kind{
	names: []string{"libmpi_abi.so.1", "libmpi_abi.1.dylib"},
	world: 0x101, byteType: 0x247, errorsReturn: 0x143,
	serialized: 2048,
	version:    1,
	install:    "install MPICH 5 or later",
}

// The two kinds of message.
const (
	tagData = 1
	tagNote = 2
)

// status is MPI_Status. The first three fields and the alignment are the same in all interfaces;
// the size is the standard one's, the largest (Open MPI's has 24 bytes).
type status struct {
	source, tag, err, _ int32
	_                   [2]uint64
}

// library has the functions and handles of libmpi that are used.
type library struct {
	initThread  func(argc, argv unsafe.Pointer, required int32, provided *int32) int32
	initialized func(flag *int32) int32
	finalize    func() int32
	commRank    func(comm uintptr, rank *int32) int32
	commSize    func(comm uintptr, size *int32) int32
	setErrors   func(comm, handler uintptr) int32
	isend       func(buf unsafe.Pointer, count int32, datatype uintptr, dest, tag int32,
		comm uintptr, request *uintptr) int32
	irecv func(buf unsafe.Pointer, count int32, datatype uintptr, source, tag int32,
		comm uintptr, request *uintptr) int32
	recv func(buf unsafe.Pointer, count int32, datatype uintptr, source, tag int32,
		comm uintptr, status *status) int32
	test        func(request *uintptr, flag *int32, status unsafe.Pointer) int32
	iprobe      func(source, tag int32, comm uintptr, flag *int32, status *status) int32
	getCount    func(status *status, datatype uintptr, count *int32) int32
	errorString func(code int32, text *byte, length *int32) int32
	exit        func(code int32)
	sigaction   func(signal int32, action, old unsafe.Pointer) int32

	kind // its handles are set
}

// load loads the library of k and looks up its functions and handles.
func load(k kind) (lib *library, err error) {
	var handle uintptr
	var first error
	for _, name := range k.names {
		// Its own plug-ins look for its symbols: they must be global.
		if handle, err = purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL); err == nil {
			break
		}
		if first == nil {
			first = err
		}
	}
	if handle == 0 {
		return nil, fmt.Errorf("mpi: %s cannot be loaded: %v: %s, or set LD_LIBRARY_PATH",
			k.names[0], first, k.install)
	}
	lib = &library{kind: k}
	for _, f := range []struct {
		fn   any
		name string
	}{
		{&lib.initThread, "MPI_Init_thread"}, {&lib.initialized, "MPI_Initialized"},
		{&lib.finalize, "MPI_Finalize"},
		{&lib.commRank, "MPI_Comm_rank"}, {&lib.commSize, "MPI_Comm_size"},
		{&lib.setErrors, "MPI_Comm_set_errhandler"},
		{&lib.isend, "MPI_Isend"}, {&lib.irecv, "MPI_Irecv"}, {&lib.recv, "MPI_Recv"},
		{&lib.test, "MPI_Test"},
		{&lib.iprobe, "MPI_Iprobe"}, {&lib.getCount, "MPI_Get_count"},
		{&lib.errorString, "MPI_Error_string"},
		{&lib.exit, "exit"}, {&lib.sigaction, "sigaction"}, // C's, which the library depends on
	} {
		at, err := purego.Dlsym(handle, f.name)
		if err != nil {
			return nil, k.foreign(err)
		}
		purego.RegisterFunc(f.fn, at)
	}
	handles := []*uintptr{&lib.world, &lib.byteType, &lib.errorsReturn}
	for i, name := range k.symbols {
		if *handles[i], err = purego.Dlsym(handle, name); err != nil {
			return nil, k.foreign(err)
		}
	}
	if k.version > 0 {
		at, err := purego.Dlsym(handle, "MPI_Abi_get_version")
		if err != nil {
			return nil, k.foreign(err)
		}
		var getVersion func(major, minor *int32) int32
		purego.RegisterFunc(&getVersion, at)
		var major, minor int32
		if code := getVersion(&major, &minor); code != success || major != k.version {
			return nil,
				k.foreign(
					fmt.Errorf("its binary interface is %d.%d, not %d", major, minor, k.version))
		}
	}
	return lib, nil
}

// foreign returns the error of a library that lacks a symbol or has another version.
func (k kind) foreign(err error) error {
	return fmt.Errorf("mpi: %s is not the library that gad knows: %v: %s", k.names[0], err,
		k.install)
}

// link is this process as one of the ranks that mpirun started.
type link struct {
	lib        *library
	rank, size int
	posted     []*message // notes not yet sent
	abandoned  []*message // messages of failed exchanges: the library may still write to them
	note       [comm.MaxNote]byte
	limit      time.Duration // of MPI's own collective calls
}

// message is a message under way. Its memory is pinned until it is done.
type message struct {
	request uintptr
	pins    runtime.Pinner
}

// Open returns the link that mpirun has prepared; it is called once in a process. abi says that
// mpirun's library is libmpi_abi. All ranks meet in Open and in Close: limit is how long each waits
// for the others there.
func Open(abi bool, limit time.Duration) (comm.Link, error) {
	k := openMPI
	if abi {
		k = standard
	}
	lib, err := load(k)
	if err != nil {
		return nil, err
	}
	var done int32
	if lib.initialized(&done); done != 0 {
		return nil, errors.New("mpi: opened twice")
	}
	// Faults of this program are the Go runtime's to report, and not the library's.
	if _, ok := os.LookupEnv("OMPI_MCA_opal_signal"); !ok {
		os.Setenv("OMPI_MCA_opal_signal", "")
	}
	// MPICH takes SIGUSR1 for itself, with a handler that the Go runtime cannot bear.
	var handlers [32][256]byte // more than C's struct sigaction
	for s := 1; lib.version > 0 && s < len(handlers); s++ {
		lib.sigaction(int32(s), nil, unsafe.Pointer(&handlers[s]))
	}
	var level int32
	if code, ok := callWithin(limit,
		func() int32 { return lib.initThread(nil, nil, lib.serialized, &level) }); !ok {
		return nil, fmt.Errorf("mpi: the ranks have not met within %v (trainer.rank_timeout): one of them hangs or was not started", limit)
	} else if code != success {
		return nil, fmt.Errorf("mpi: MPI_Init_thread: %w", lib.failure(code))
	}
	for s := 1; lib.version > 0 && s < len(handlers); s++ {
		lib.sigaction(int32(s), unsafe.Pointer(&handlers[s]), nil) // it refuses SIGKILL and SIGSTOP
	}
	if level < lib.serialized {
		return nil,
			fmt.Errorf(
				"mpi: the library offers thread level %d: expected at least %d (MPI_THREAD_SERIALIZED)",
				level, lib.serialized)
	}
	var rank, size int32
	for _, code := range []int32{lib.setErrors(lib.world, lib.errorsReturn),
		lib.commRank(lib.world, &rank), lib.commSize(lib.world, &size)} {
		if code != success {
			return nil, fmt.Errorf("mpi: MPI_COMM_WORLD: %w", lib.failure(code))
		}
	}
	return &link{lib: lib, rank: int(rank), size: int(size), limit: limit}, nil
}

// callWithin returns the result of f, a call that waits for all ranks; ok is false if f does not
// return within limit. Its goroutine then never ends, and the process can only exit.
func callWithin(limit time.Duration, f func() int32) (code int32, ok bool) {
	done := make(chan int32, 1)
	go func() { done <- f() }()
	select {
	case code := <-done:
		return code, true
	case <-time.After(limit):
		return 0, false
	}
}

// failure returns the library's text for an error code.
func (lib *library) failure(code int32) error {
	var text [maxErrorString]byte
	var n int32
	if lib.errorString(code, &text[0], &n) != success {
		return fmt.Errorf("error %d", code)
	}
	return errors.New(string(bytes.TrimRight(text[:min(max(int(n), 0), len(text))], "\x00")))
}

// Rank returns the rank in MPI_COMM_WORLD.
func (l *link) Rank() int { return l.rank }

// Size returns the size of MPI_COMM_WORLD.
func (l *link) Size() int { return l.size }

// maxMessage is the largest message in bytes: MPI's counts have 32 bits.
const maxMessage = 1 << 30

// Exchange sends out to peer and fills in with the bytes from peer.
func (l *link) Exchange(peer int, out, in []byte, keepOn func() error) error {
	for len(out)+len(in) > 0 {
		o, i := out[:min(len(out), maxMessage)], in[:min(len(in), maxMessage)]
		if err := l.exchange(peer, unsafe.SliceData(o), len(o), unsafe.SliceData(i), len(i),
			keepOn); err != nil {
			return err
		}
		out, in = out[len(o):], in[len(i):]
	}
	return nil
}

// ExchangeFloats sends out to peer and fills in with the numbers from peer.
func (l *link) ExchangeFloats(peer int, out, in []float32, keepOn func() error) error {
	for len(out)+len(in) > 0 {
		o, i := out[:min(len(out), maxMessage/4)], in[:min(len(in), maxMessage/4)]
		err := l.exchange(peer, (*byte)(unsafe.Pointer(unsafe.SliceData(o))), 4*len(o),
			(*byte)(unsafe.Pointer(unsafe.SliceData(i))), 4*len(i), keepOn)
		if err != nil {
			return err
		}
		out, in = out[len(o):], in[len(i):]
	}
	return nil
}

// Intervals at which a message is polled: at first without a pause, since its sender is
// ready or will soon be; after a long wait the core is left to others.
const (
	eager     = time.Millisecond
	pause     = 50 * time.Microsecond
	longPause = time.Millisecond
)

// exchange sends nOut bytes from out to peer and receives nIn bytes into in.
func (l *link) exchange(peer int, out *byte, nOut int, in *byte, nIn int,
	keepOn func() error) error {
	m := []*message{{}, {}}
	begin := func(m *message,
		start func(buf unsafe.Pointer, count int32, datatype uintptr, peer, tag int32, comm uintptr,
			request *uintptr) int32, buf *byte, n int) error {
		if n == 0 {
			return nil
		}
		m.pins.Pin(buf)
		m.pins.Pin(&m.request)
		if code := start(unsafe.Pointer(buf), int32(n), l.lib.byteType, int32(peer), tagData,
			l.lib.world, &m.request); code != success {
			m.pins.Unpin()
			return l.lib.failure(code)
		}
		return nil
	}
	if err := begin(m[0], l.lib.irecv, in, nIn); err != nil {
		return err
	}
	if err := begin(m[1], l.lib.isend, out, nOut); err != nil {
		l.abandoned = append(l.abandoned, m[0])
		return err
	}
	if nIn == 0 {
		m = m[1:]
	}
	if nOut == 0 {
		m = m[:len(m)-1]
	}
	begun := time.Now()
	for round := 0; ; round++ {
		for len(m) > 0 {
			done, err := l.poll(m[0])
			if err != nil {
				l.abandoned = append(l.abandoned, m...)
				return err
			}
			if !done {
				if len(m) == 2 { // the other may be
					m[0], m[1] = m[1], m[0]
					if done, err := l.poll(m[0]); err != nil {
						l.abandoned = append(l.abandoned, m...)
						return err
					} else if done {
						m = m[1:]
					}
				}
				break
			}
			m = m[1:]
		}
		if len(m) == 0 {
			return nil
		}
		if round%16 == 15 {
			if err := keepOn(); err != nil {
				l.abandoned = append(l.abandoned, m...)
				return err
			}
		}
		switch waited := time.Since(begun); {
		case waited < eager:
			runtime.Gosched()
		case waited < 100*eager:
			time.Sleep(pause)
		default:
			time.Sleep(longPause)
		}
	}
}

// poll reports whether a message is done, and unpins its memory then.
func (l *link) poll(m *message) (bool, error) {
	var flag int32
	if code := l.lib.test(&m.request, &flag, nil); code != success {
		return false, l.lib.failure(code)
	}
	if flag != 0 {
		m.pins.Unpin()
	}
	return flag != 0, nil
}

// Post sends a copy of the note without waiting.
func (l *link) Post(peer int, note []byte) error {
	l.sweep()
	m, buf := &message{}, bytes.Clone(note)
	m.pins.Pin(&buf[0])
	m.pins.Pin(&m.request)
	if code := l.lib.isend(unsafe.Pointer(&buf[0]), int32(len(buf)), l.lib.byteType, int32(peer),
		tagNote, l.lib.world, &m.request); code != success {
		return l.lib.failure(code)
	}
	l.posted = append(l.posted, m)
	return nil
}

// sweep drops the posted notes that are done.
func (l *link) sweep() {
	left := l.posted[:0]
	for _, m := range l.posted {
		if done, err := l.poll(m); !done && err == nil {
			left = append(left, m)
		}
	}
	l.posted = left
}

// Note returns the next note received, or nil.
func (l *link) Note() (from int, note []byte, err error) {
	var flag, n int32
	st := &status{}
	if code := l.lib.iprobe(anySource, tagNote, l.lib.world, &flag, st); code != success {
		return 0, nil, l.lib.failure(code)
	}
	if flag == 0 {
		return 0, nil, nil
	}
	from = int(st.source)
	// It is there in full: it is small.
	if code := l.lib.recv(unsafe.Pointer(&l.note[0]), comm.MaxNote, l.lib.byteType, st.source,
		tagNote, l.lib.world, st); code != success {
		return from, nil, l.lib.failure(code)
	}
	if code := l.lib.getCount(st, l.lib.byteType, &n); code != success || n < 1 ||
		n > comm.MaxNote {
		return from, nil, fmt.Errorf("mpi: a note of %d bytes", n)
	}
	return from, bytes.Clone(l.note[:n]), nil
}

// lastWords is the longest time that a failing rank waits for its notes to be sent.
const lastWords = 500 * time.Millisecond

// Close calls MPI_Finalize if orderly. Otherwise it only waits a moment for its notes to be
// sent: mpirun ends the other ranks when this process ends.
func (l *link) Close(orderly bool) error {
	if !orderly {
		for begun := time.Now(); time.Since(begun) < lastWords; time.Sleep(longPause) {
			l.sweep()
			var flag int32 // the probe makes the library progress
			l.lib.iprobe(anySource, tagNote, l.lib.world, &flag, &status{})
		}
		return nil
	}
	for { // receive the notes that nobody has read
		if _, note, err := l.Note(); err != nil || note == nil {
			break
		}
	}
	if code, ok := callWithin(l.limit, l.lib.finalize); !ok {
		return fmt.Errorf("mpi: the ranks have not ended together within %v (trainer.rank_timeout): one of them hangs", l.limit)
	} else if code != success {
		return fmt.Errorf("mpi: MPI_Finalize: %w", l.lib.failure(code))
	}
	if l.lib.version > 0 {
		exit = l.lib.exit
	}
	return nil
}

// exit is C's exit, once MPI has ended in order by a library that needs it; else nil.
var exit func(code int32)

// Exit ends the process. MPICH tells mpirun in a handler of C's exit that this rank has
// ended in order; mpirun kills the other ranks if a process ends without it.
func Exit(code int) {
	if exit != nil {
		exit(int32(code))
	}
	os.Exit(code)
}
