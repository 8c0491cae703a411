// Package comm has the collectives of the processes of one run, its ranks: all-gather,
// agreement, and sums of gradients in an order that does not depend on the number of ranks.
// They are written once, over a Link, which moves bytes between two ranks: internal/comm/tcp,
// internal/comm/mpi, or internal/comm/commtest in tests.
//
// Every rank makes the same calls in the same order. Each call belongs to a phase of the step
// (Enter) and waits for the other ranks until a deadline; the error names a rank that is
// missing. A rank that fails sends Abort, so that the others do not wait for it.
package comm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"time"
)

// Link connects the ranks of a run. A Group calls it from one goroutine.
//
// Exchange and ExchangeFloats send out to peer and fill in with what peer sends; both
// sides call, and each says how much it expects. While they wait they ask keepOn, often,
// and give up with its error.
type Link interface {
	Rank() int
	Size() int
	Exchange(peer int, out, in []byte, keepOn func() error) error
	ExchangeFloats(peer int, out, in []float32, keepOn func() error) error
	// Post sends a note of at most MaxNote bytes and does not wait. Notes and exchanges
	// may overtake each other.
	Post(peer int, note []byte) error
	// Note is the next note that has come, in the order in which its sender posted them;
	// nil where none has.
	Note() (from int, note []byte, err error)
	// Close ends the link. orderly says that all ranks close now; otherwise it must not
	// wait for anybody.
	Close(orderly bool) error
}

// MaxNote is the largest note in bytes.
const MaxNote = 1024

// Group is the ranks of a run. The nil Group is one process alone: it has everything
// that there is to gather, and never waits. Methods are called from one goroutine.
type Group struct {
	link  Link
	limit time.Duration // how long a rank waits for the others in one phase
	hosts []string

	calls    uint64 // collectives begun: the same everywhere
	entered  string // phase of the step
	kind     string // of the last call: gather or sum
	phase    string // and what it was for
	deadline time.Time
	reached  []uint64    // [R] collectives that each rank is known to have begun
	heard    []time.Time // [R] when its last note came
	told     time.Time   // when this rank has last said that it is here
	peer     int         // that an exchange is under way with
	wished   bool        // some rank wishes to stop
	failed   error       // the first failure, which stays
	exits    func(err error) int
	traffic  Traffic
	buf      []float32
}

// Traffic counts what a rank has sent.
type Traffic struct {
	SumBytes    int64         // of gradients
	GatherBytes int64         // of everything else
	Sum, Gather time.Duration // spent in these calls, waiting included
}

// ErrRanks is wrapped by every failure of a group.
var ErrRanks = errors.New("ranks")

// Lost is the error of a rank that the others have waited for in vain.
type Lost struct {
	Rank  int
	Host  string
	Phase string
	Limit time.Duration // 0: the link to it broke
	Err   error         // of the link; nil after a deadline
}

func (e *Lost) Error() string {
	why := fmt.Sprintf("did not answer within %v (trainer.rank_timeout)", e.Limit)
	if e.Err != nil {
		why = "cannot be reached: " + e.Err.Error()
	}
	return fmt.Sprintf("ranks: phase %s: rank %d on %s %s: it hangs or has ended: the same command resumes from the last checkpoint", e.Phase, e.Rank, e.Host, why)
}

// Unwrap is ErrRanks.
func (e *Lost) Unwrap() error { return ErrRanks }

// Aborted is the error of a run in which another rank has failed, or found one lost.
type Aborted struct {
	Rank   int // that told
	Host   string
	Status int // that its process exits with, as Exits has it; 0 where it does not say
	Reason string
}

func (e *Aborted) Error() string {
	if strings.HasPrefix(e.Reason, "ranks: ") {
		return e.Reason // found by one, told to all
	}
	return fmt.Sprintf("ranks: rank %d on %s: %s", e.Rank, e.Host, e.Reason)
}

// Unwrap is ErrRanks.
func (e *Aborted) Unwrap() error { return ErrRanks }

// New makes a group of the ranks that link connects: a power of two, so that sums have
// one order. limit is how long a rank waits for the others in one phase.
func New(link Link, limit time.Duration) (*Group, error) {
	n := link.Size()
	if n&(n-1) != 0 {
		return nil, fmt.Errorf("ranks: there are %d: expected a power of two, such as 2, 4 or 8", n)
	}
	g := &Group{link: link, limit: limit, reached: make([]uint64, n), heard: make([]time.Time, n),
		hosts: make([]string, n)}
	for i := range g.hosts {
		g.hosts[i] = "a host not yet known"
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	hosts, err := g.Gather("connecting", []byte(host))
	if err != nil {
		return nil, err
	}
	for i, h := range hosts {
		g.hosts[i] = string(h)
	}
	return g, nil
}

// SetLimit changes how long a rank waits for the others in one phase.
func (g *Group) SetLimit(limit time.Duration) {
	if g != nil {
		g.limit = limit
	}
}

// Exits has the other ranks told what this process exits with when it fails: one status, as
// a launcher passes on that of the rank that happens to end first.
func (g *Group) Exits(status func(err error) int) {
	if g != nil {
		g.exits = status
	}
}

// Enter names the phase of the step that the calls from now on belong to.
func (g *Group) Enter(phase string) {
	if g != nil {
		g.entered = phase
	}
}

// Rank is this process's number, 0 to Size-1.
func (g *Group) Rank() int {
	if g == nil {
		return 0
	}
	return g.link.Rank()
}

// Size is the number of ranks.
func (g *Group) Size() int {
	if g == nil {
		return 1
	}
	return g.link.Size()
}

// Hosts are the names of the ranks' machines.
func (g *Group) Hosts() []string {
	if g == nil {
		return nil
	}
	return g.hosts
}

// Traffic is what this rank has sent so far.
func (g *Group) Traffic() Traffic {
	if g == nil {
		return Traffic{}
	}
	return g.traffic
}

// Gather gives every rank what each has, by rank. what says what for, here and below.
func (g *Group) Gather(what string, mine []byte) ([][]byte, error) {
	if g == nil {
		return [][]byte{mine}, nil
	}
	begun := time.Now()
	defer func() { g.traffic.Gather += time.Since(begun) }()
	if err := g.begin("gather", what); err != nil {
		return nil, err
	}
	rank, all := g.Rank(), make([][]byte, g.Size())
	all[rank] = mine
	for d := 1; d < len(all); d *= 2 { // before it, a rank has those of its block of d ranks
		first := rank &^ (d - 1)
		var out []byte
		for _, piece := range all[first : first+d] {
			out = append(binary.LittleEndian.AppendUint64(out, uint64(len(piece))), piece...)
		}
		in, err := g.swap(rank^d, out)
		if err != nil {
			return nil, err
		}
		g.traffic.GatherBytes += int64(len(out))
		theirs := first ^ d
		for i := range d {
			if len(in) < 8 || uint64(len(in)-8) < binary.LittleEndian.Uint64(in) {
				return nil,
					g.fail(
						fmt.Errorf(
							"%w: phase %s: rank %d sent a gather of %d bytes that ends early",
							ErrRanks, g.phase, rank^d, len(in)))
			}
			n := binary.LittleEndian.Uint64(in)
			all[theirs+i], in = in[8:8+n:8+n], in[8+n:]
		}
	}
	return all, nil
}

// From is what rank root has, for everybody.
func (g *Group) From(what string, root int, mine []byte) ([]byte, error) {
	if g.Rank() != root {
		mine = nil
	}
	all, err := g.Gather(what, mine)
	if err != nil {
		return nil, err
	}
	return all[root], nil
}

// Barrier waits until every rank has come.
func (g *Group) Barrier(what string) error {
	_, err := g.Gather(what, nil)
	return err
}

// Any reports whether yes is true on some rank.
func (g *Group) Any(what string, yes bool) (bool, error) {
	mine := []byte{0}
	if yes {
		mine[0] = 1
	}
	all, err := g.Gather(what, mine)
	for _, b := range all {
		yes = yes || len(b) == 1 && b[0] == 1
	}
	return yes, err
}

// sumChunk is how many elements of a sum travel at a time.
const sumChunk = 1 << 20

// Sum leaves in x, on every rank, the sum of all ranks' x: of each element by a binary
// tree over the ranks, ((0+1)+(2+3))+..., whatever path the numbers take. x has the same
// length everywhere.
//
// Ranks at distance 1, 2, 4, ... swap halves of what they are left with and add, until
// each has one part of the sum; then the parts go back the same way. Each rank sends
// 2(R-1)/R of x, the least that is possible.
func (g *Group) Sum(what string, x []float32) error {
	if g == nil || g.Size() == 1 {
		return nil
	}
	begun := time.Now()
	defer func() { g.traffic.Sum += time.Since(begun) }()
	if err := g.begin("sum", what); err != nil {
		return err
	}
	n := g.Size()
	cuts := make([]int, n+1)
	for i := range cuts {
		cuts[i] = i * len(x) / n
	}
	if err := g.halve(x, cuts); err != nil {
		return err
	}
	return g.double(x, cuts)
}

// sameLength wants n to be the same on both sides.
func (g *Group) sameLength(peer, n int) error {
	in, err := g.swap(peer, binary.LittleEndian.AppendUint64(nil, uint64(n)))
	if err != nil {
		return err
	}
	if len(in) != 8 || binary.LittleEndian.Uint64(in) != uint64(n) {
		return g.fail(fmt.Errorf("%w: phase %s: a sum of %d numbers here has another length on rank %d: the ranks do not train the same model", ErrRanks, g.phase, n, peer))
	}
	return nil
}

// swapAdd sends out and adds what comes to sum, a chunk at a time. The two may differ in
// length.
func (g *Group) swapAdd(peer int, out, sum []float32) error {
	if g.buf == nil {
		g.buf = make([]float32, sumChunk)
	}
	for len(out)+len(sum) > 0 {
		o, s := out[:min(len(out), sumChunk)], sum[:min(len(sum), sumChunk)]
		in := g.buf[:len(s)]
		if err := g.floats(peer, o, in); err != nil {
			return err
		}
		for i, v := range in {
			s[i] += v
		}
		out, sum = out[len(o):], sum[len(s):]
	}
	return nil
}

// swapParts sends out and fills in, a chunk at a time.
func (g *Group) swapParts(peer int, out, in []float32) error {
	for len(out)+len(in) > 0 {
		o, i := out[:min(len(out), sumChunk)], in[:min(len(in), sumChunk)]
		if err := g.floats(peer, o, i); err != nil {
			return err
		}
		out, in = out[len(o):], in[len(i):]
	}
	return nil
}

// Device has all ranks call f, which moves elements between their devices without this
// package, once all have come with the same number of elements. sent is how many bytes that
// makes each rank send. While f waits it asks keepOn, often, and gives up with its error. An
// error of f's own is told to the others.
func (g *Group) Device(what string, elements int, sent int64,
	f func(keepOn func() error) error) error {
	all, err := g.Gather(what, binary.LittleEndian.AppendUint64(nil, uint64(elements)))
	if err != nil {
		return err
	}
	for r, n := range all {
		if string(n) != string(all[g.Rank()]) {
			return g.fail(fmt.Errorf("%w: phase %s: %d numbers here, another count on rank %d: the ranks do not train the same model", ErrRanks, g.phase, elements, r))
		}
	}
	if g == nil {
		return f(func() error { return nil })
	}
	begun := time.Now()
	defer func() { g.traffic.Sum += time.Since(begun) }()
	g.traffic.SumBytes += sent
	if err := g.begin("device", what); err != nil {
		return err
	}
	var ended error // by keepOn
	err = f(func() error {
		if ended == nil {
			ended = g.keepOn()
		}
		if lost := (*Lost)(nil); errors.As(ended, &lost) && lost.Err == nil && g.allHere() {
			ended = fmt.Errorf("%w: phase %s: all ranks answer, but their GPUs are not done within %v (trainer.rank_timeout): a GPU or the network between them hangs (NCCL_DEBUG=INFO says more)", ErrRanks, g.phase, g.limit)
		}
		return ended
	})
	if ended != nil {
		return g.fail(ended)
	}
	if err == nil {
		return nil
	}
	for until := time.Now().Add(min(g.limit/2, time.Second)); g.failed == nil &&
		time.Now().Before(until); time.Sleep(time.Millisecond) {
		if lost := g.hear(); lost != nil { // a device's error often follows that of another rank
			return g.fail(lost)
		}
	}
	return g.fail(fmt.Errorf("%w: phase %s, rank %d on %s: %w", ErrRanks, g.phase, g.Rank(),
		g.hosts[g.Rank()], err))
}

// allHere reports whether all ranks have begun this call and said so again not long ago.
func (g *Group) allHere() bool {
	for r, n := range g.reached {
		if r != g.Rank() && (n < g.calls || time.Since(g.heard[r]) > g.limit/2) {
			return false
		}
	}
	return true
}

func (g *Group) floats(peer int, out, in []float32) error {
	g.traffic.SumBytes += 4 * int64(len(out))
	g.peer = peer
	return g.broken(peer, g.link.ExchangeFloats(peer, out, in, g.keepOn))
}

// begin begins a collective, which every rank is told of: so the ranks that wait know
// which ones have not come.
func (g *Group) begin(kind, what string) error {
	if g.failed != nil {
		return g.failed
	}
	phase := what
	if g.entered != "" {
		phase = g.entered + ", " + what
	}
	g.calls++
	g.kind, g.phase, g.deadline = kind, phase, time.Now().Add(g.limit)
	g.reached[g.Rank()] = g.calls
	if err := g.keepOn(); err != nil { // what came while this rank was at work
		return g.fail(err)
	}
	g.here()
	return g.failed
}

// here tells the others that this rank waits for them.
func (g *Group) here() {
	g.told = time.Now()
	g.tell(binary.LittleEndian.AppendUint64([]byte{noteHere}, g.calls))
}

// header begins a message between two ranks: which collective it belongs to, and how
// many bytes follow.
const headerBytes = 24

// swap sends out to peer and receives what it sends, of any length.
func (g *Group) swap(peer int, out []byte) (in []byte, err error) {
	h := fnv.New64a()
	h.Write([]byte(g.kind + " " + g.phase))
	g.peer = peer
	var mine, theirs [headerBytes]byte
	binary.LittleEndian.PutUint64(mine[0:], g.calls)
	binary.LittleEndian.PutUint64(mine[8:], h.Sum64())
	binary.LittleEndian.PutUint64(mine[16:], uint64(len(out)))
	if err := g.broken(peer, g.link.Exchange(peer, mine[:], theirs[:], g.keepOn)); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(theirs[16:])
	if string(theirs[:16]) != string(mine[:16]) || n > 1<<40 {
		return nil, g.fail(fmt.Errorf("%w: phase %s, call %d: rank %d on %s is in another one: the ranks do not run the same program and settings", ErrRanks, g.phase, g.calls, peer, g.hosts[peer]))
	}
	in = make([]byte, n)
	if len(out) == 0 && n == 0 {
		return in, nil
	}
	return in, g.broken(peer, g.link.Exchange(peer, out, in, g.keepOn))
}

// broken is the failure that an error of the link means.
func (g *Group) broken(peer int, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrRanks) { // keepOn's
		return g.fail(err)
	}
	_ = g.hear() // it may have said why
	if g.failed != nil {
		return g.failed
	}
	return g.fail(&Lost{Rank: peer, Host: g.hosts[peer], Phase: g.phase, Err: err})
}

// fail keeps the first failure. One that this rank has found is told to the others.
func (g *Group) fail(err error) error {
	if g.failed == nil {
		g.failed = err
		if told := (*Aborted)(nil); !errors.As(err, &told) {
			g.say(g.Rank(), g.status(err), err.Error())
		}
	}
	return g.failed
}

// What a note says: its first byte.
const (
	noteHere  = 'h' // the sender has begun so many collectives
	noteStop  = 's' // the sender wishes to stop
	noteAbort = 'a' // the sender ends: which rank has found why, its exit status, and why
)

// tell posts a note to every other rank. One that cannot be reached is found by the
// exchange with it.
func (g *Group) tell(note []byte) {
	for peer := range g.Size() {
		if peer != g.Rank() {
			_ = g.link.Post(peer, note)
		}
	}
}

// abortHeader is how many bytes of such a note stand before the reason.
const abortHeader = 6

// say tells the others that this rank ends, because of what the rank first has found.
func (g *Group) say(first, status int, reason string) {
	note := append(binary.LittleEndian.AppendUint32([]byte{noteAbort}, uint32(first)), byte(status))
	g.tell(append(note, reason[:min(len(reason), MaxNote-len(note))]...))
}

func (g *Group) status(err error) int {
	if g.exits == nil {
		return 0
	}
	return g.exits(err)
}

// hear takes in the notes that have come.
func (g *Group) hear() error {
	for {
		from, note, err := g.link.Note()
		if err != nil {
			return &Lost{Rank: from, Host: g.hosts[from], Phase: g.phase, Err: err}
		}
		if len(note) == 0 {
			return nil
		}
		g.heard[from] = time.Now()
		switch {
		case note[0] == noteHere && len(note) == 9:
			g.reached[from] = binary.LittleEndian.Uint64(note[1:])
		case note[0] == noteStop:
			g.wished = true
		case note[0] == noteAbort && len(note) >= abortHeader && g.failed == nil:
			first, status, reason :=
				int(binary.LittleEndian.Uint32(note[1:]))%g.Size(), int(note[5]),
				string(note[abortHeader:])
			g.failed = &Aborted{Rank: first, Host: g.hosts[first], Status: status, Reason: reason}
			// who sees this rank end before the first one's note comes must know why
			g.say(first, status, reason)
		}
	}
}

// keepOn is asked while a rank waits for others: its error ends the wait.
func (g *Group) keepOn() error {
	if err := g.hear(); err != nil {
		return err
	}
	if g.failed != nil {
		return g.failed
	}
	now := time.Now()
	if now.Sub(g.told) > g.limit/8 {
		g.here()
	}
	if now.Before(g.deadline) {
		return nil
	}
	lost := g.missing(now)
	return &Lost{Rank: lost, Host: g.hosts[lost], Phase: g.phase, Limit: g.limit}
}

// missing is the rank that keeps the others from going on: one that has not come to this
// call; or, if all have, any. Of these the one that has been silent longest, as whoever
// waits is not, be it in an earlier call.
func (g *Group) missing(now time.Time) int {
	behind := -1
	for r, n := range g.reached {
		if n < g.calls && (behind < 0 || g.heard[r].Before(g.heard[behind])) {
			behind = r
		}
	}
	if behind >= 0 {
		return behind
	}
	lost := g.peer
	for r := range g.reached {
		if r != g.Rank() && g.heard[r].Before(g.heard[lost]) {
			lost = r
		}
	}
	if now.Sub(g.heard[g.peer]) > g.limit/2 {
		return g.peer
	}
	return lost
}

// Wish tells the others that this rank wishes to stop. They agree at the next Any.
func (g *Group) Wish() {
	if g == nil || g.wished {
		return
	}
	g.wished = true
	g.tell([]byte{noteStop})
}

// Wished reports whether some rank has wished to stop, or the run cannot go on: a long
// computation may end early. It does not wait.
func (g *Group) Wished() bool {
	if g == nil {
		return false
	}
	return g.Failed() || g.wished
}

// Failed reports whether the run cannot go on: a long computation may end early. It does
// not wait.
func (g *Group) Failed() bool {
	if g == nil {
		return false
	}
	if err := g.hear(); err != nil {
		g.fail(err)
	}
	return g.failed != nil
}

// Abort tells the others that this rank ends, and why: their next call, or the one that
// they wait in, fails.
func (g *Group) Abort(why error) {
	if g == nil || g.failed != nil {
		return
	}
	g.failed = fmt.Errorf("%w: this rank has ended: %v", ErrRanks, why)
	g.say(g.Rank(), g.status(why), why.Error())
}

// Close ends the group: in order, with all ranks together, if nothing has failed.
func (g *Group) Close() error {
	if g == nil {
		return nil
	}
	if g.failed != nil { // which has been told
		return g.link.Close(false)
	}
	err := g.Barrier("ending")
	return errors.Join(err, g.link.Close(err == nil))
}
