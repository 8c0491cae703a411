// Package comm has the collectives of the processes of one run, its ranks: all-gather, agreement,
// and sums of gradients in an order that does not depend on the number of ranks. They are written
// once, over a Link, which moves bytes between two ranks: internal/comm/tcp, internal/comm/mpi, or
// internal/comm/commtest in tests. Start in comm.go (Link, Group and its calls); parts.go has sums
// that stay distributed, launch.go reads the launcher's variables.
//
// Every rank makes the same calls in the same order. Each call belongs to a phase of the step
// (Enter) and waits for the other ranks until a deadline; the error names a rank that is missing. A
// rank that fails sends Abort, so that the others do not wait for it.
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
// Exchange and ExchangeFloats send out to peer and fill in with the data that peer sends.
// Both sides call, with buffers of the lengths that they send and expect. While they wait
// they call keepOn often, and return its error if it has one.
type Link interface {
	Rank() int
	Size() int
	Exchange(peer int, out, in []byte, keepOn func() error) error
	ExchangeFloats(peer int, out, in []float32, keepOn func() error) error
	// Post sends a note of at most MaxNote bytes and does not wait. Notes and exchanges
	// may overtake each other.
	Post(peer int, note []byte) error
	// Note returns the next note received, in the order in which its sender posted them;
	// nil if there is none. It does not wait.
	Note() (from int, note []byte, err error)
	// Close ends the link. orderly says that all ranks close now; otherwise Close must not
	// wait for other ranks.
	Close(orderly bool) error
}

// MaxNote is the largest note in bytes.
const MaxNote = 1024

// Group is the ranks of a run. The nil Group is a single process: its collectives return at once.
// Methods are called from one goroutine.
type Group struct {
	link  Link
	limit time.Duration // how long a rank waits for the others in one phase
	hosts []string

	calls         uint64 // number of collectives started: the same on all ranks
	stepPhase     string // phase of the step
	kind          string // of the last call: gather, sum, device, ...
	phase         string // of the last call: stepPhase and the call's purpose
	deadline      time.Time
	callsOf       []uint64    // [R] collectives that each rank has started, by its last heartbeat
	lastSeen      []time.Time // [R] time of each rank's last note
	lastSent      time.Time   // time of this rank's last heartbeat
	peer          int         // rank of the last exchange
	stopRequested bool        // by some rank
	failed        error       // the first failure, which stays
	exitStatus    func(err error) int
	traffic       Traffic
	buf           []float32
}

// Traffic counts what a rank has sent.
type Traffic struct {
	SumBytes    int64         // of gradients
	GatherBytes int64         // of everything else
	Sum, Gather time.Duration // spent in these calls, waiting included
}

// ErrRanks is wrapped by every failure of a group.
var ErrRanks = errors.New("ranks")

// Lost is the error of a call in which a rank did not answer in time, or the link to it broke.
type Lost struct {
	Rank  int
	Host  string
	Phase string
	Limit time.Duration // that has passed; 0: the link broke
	Err   error         // of the link; nil after a deadline
}

func (e *Lost) Error() string {
	why := fmt.Sprintf("did not answer within %v (trainer.rank_timeout)", e.Limit)
	if e.Err != nil {
		why = "cannot be reached: " + e.Err.Error()
	}
	return fmt.Sprintf("ranks: phase %s: rank %d on %s %s: it hangs or has ended: the same command resumes from the last checkpoint", e.Phase, e.Rank, e.Host, why)
}

// Unwrap returns ErrRanks.
func (e *Lost) Unwrap() error { return ErrRanks }

// Aborted is the error of a run in which another rank has failed, or has found a rank lost.
type Aborted struct {
	Rank   int // that found the failure first
	Host   string
	Status int // exit status of its process, from the function set by Exits; 0: not known
	Reason string
}

func (e *Aborted) Error() string {
	if strings.HasPrefix(e.Reason, "ranks: ") {
		return e.Reason // the same message on all ranks
	}
	return fmt.Sprintf("ranks: rank %d on %s: %s", e.Rank, e.Host, e.Reason)
}

// Unwrap returns ErrRanks.
func (e *Aborted) Unwrap() error { return ErrRanks }

// New returns the group of the ranks that link connects: a power of two, so that sums have one
// order. limit is how long a rank waits for the others in one phase.
func New(link Link, limit time.Duration) (*Group, error) {
	n := link.Size()
	if n&(n-1) != 0 {
		return nil, fmt.Errorf("ranks: there are %d: expected a power of two, such as 2, 4 or 8", n)
	}
	g := &Group{link: link, limit: limit, callsOf: make([]uint64, n), lastSeen: make([]time.Time, n),
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

// Exits sets the function that gives the exit status of an error. A failing rank sends its status
// to the others, so that all exit with the same one: a launcher passes on the status of the rank
// that happens to end first.
func (g *Group) Exits(status func(err error) int) {
	if g != nil {
		g.exitStatus = status
	}
}

// Enter names the phase of the step that the calls from now on belong to.
func (g *Group) Enter(phase string) {
	if g != nil {
		g.stepPhase = phase
	}
}

// Rank returns this process's number, 0 to Size-1.
func (g *Group) Rank() int {
	if g == nil {
		return 0
	}
	return g.link.Rank()
}

// Size returns the number of ranks.
func (g *Group) Size() int {
	if g == nil {
		return 1
	}
	return g.link.Size()
}

// Hosts returns the names of the ranks' machines, by rank.
func (g *Group) Hosts() []string {
	if g == nil {
		return nil
	}
	return g.hosts
}

// Traffic returns the bytes sent by this rank so far, and the time spent.
func (g *Group) Traffic() Traffic {
	if g == nil {
		return Traffic{}
	}
	return g.traffic
}

// Gather returns the bytes mine of every rank, by rank. what names the purpose in errors, here and
// below.
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
	for d := 1; d < len(all); d *= 2 { // a rank has the pieces of its block of d ranks so far
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

// Broadcast returns the bytes mine of rank root, on every rank.
func (g *Group) Broadcast(what string, root int, mine []byte) ([]byte, error) {
	if g.Rank() != root {
		mine = nil
	}
	all, err := g.Gather(what, mine)
	if err != nil {
		return nil, err
	}
	return all[root], nil
}

// Barrier waits until every rank has called it.
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

// Sum replaces x, on every rank, by the sum of all ranks' x. Each element is added by a binary tree
// over the ranks, ((0+1)+(2+3))+..., so its bits do not depend on timing. x has the same length on
// all ranks.
//
// Reduce-scatter by recursive halving, then all-gather by recursive doubling: ranks at distance 1,
// 2, 4, ... swap halves of their rest and add, until each has one part of the sum; then the parts
// go back the same way. Each rank sends 2(R-1)/R of x, the least possible.
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

// sameLength returns an error unless n is the same on both sides.
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

// swapAdd sends out to peer and adds the numbers received to sum, a chunk at a time. The two may
// differ in length.
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

// swapParts sends out to peer and fills in with the numbers received, a chunk at a time.
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

// Device has all ranks call f, which moves elements between their devices outside of this package,
// once all ranks have called Device with the same number of elements. sent is the number of bytes
// that each rank then sends, for Traffic. While f waits it calls keepOn often, and returns its
// error. An error of f's own is sent to the others.
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
	var ended error // of keepOn
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
		// a device's error often follows the error of another rank
		if lost := g.receiveNotes(); lost != nil {
			return g.fail(lost)
		}
	}
	return g.fail(fmt.Errorf("%w: phase %s, rank %d on %s: %w", ErrRanks, g.phase, g.Rank(),
		g.hosts[g.Rank()], err))
}

// allHere reports whether all ranks have started this call and sent a heartbeat within half the
// limit.
func (g *Group) allHere() bool {
	for r, n := range g.callsOf {
		if r != g.Rank() && (n < g.calls || time.Since(g.lastSeen[r]) > g.limit/2) {
			return false
		}
	}
	return true
}

// floats exchanges numbers with peer and counts the traffic.
func (g *Group) floats(peer int, out, in []float32) error {
	g.traffic.SumBytes += 4 * int64(len(out))
	g.peer = peer
	return g.linkFailure(peer, g.link.ExchangeFloats(peer, out, in, g.keepOn))
}

// begin starts a collective. It sends a heartbeat, so that a rank that waits knows which others
// have not started the call.
func (g *Group) begin(kind, what string) error {
	if g.failed != nil {
		return g.failed
	}
	phase := what
	if g.stepPhase != "" {
		phase = g.stepPhase + ", " + what
	}
	g.calls++
	g.kind, g.phase, g.deadline = kind, phase, time.Now().Add(g.limit)
	g.callsOf[g.Rank()] = g.calls
	if err := g.keepOn(); err != nil { // notes received while this rank was computing
		return g.fail(err)
	}
	g.heartbeat()
	return g.failed
}

// heartbeat sends the number of collectives that this rank has started to the others.
func (g *Group) heartbeat() {
	g.lastSent = time.Now()
	g.postAll(binary.LittleEndian.AppendUint64([]byte{noteHere}, g.calls))
}

// headerBytes is the length of the header of a message between two ranks: number and hash
// of the collective that it belongs to, and the number of bytes that follow.
const headerBytes = 24

// swap sends out to peer and returns the bytes received, of any length.
func (g *Group) swap(peer int, out []byte) (in []byte, err error) {
	h := fnv.New64a()
	h.Write([]byte(g.kind + " " + g.phase))
	g.peer = peer
	var mine, theirs [headerBytes]byte
	binary.LittleEndian.PutUint64(mine[0:], g.calls)
	binary.LittleEndian.PutUint64(mine[8:], h.Sum64())
	binary.LittleEndian.PutUint64(mine[16:], uint64(len(out)))
	if err := g.linkFailure(peer, g.link.Exchange(peer, mine[:], theirs[:], g.keepOn)); err != nil {
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
	return in, g.linkFailure(peer, g.link.Exchange(peer, out, in, g.keepOn))
}

// linkFailure returns the group's failure for an error of the link to peer, nil for nil. A note of
// the peer about its own failure goes before.
func (g *Group) linkFailure(peer int, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrRanks) { // keepOn's
		return g.fail(err)
	}
	_ = g.receiveNotes() // the peer may have sent the reason
	if g.failed != nil {
		return g.failed
	}
	return g.fail(&Lost{Rank: peer, Host: g.hosts[peer], Phase: g.phase, Err: err})
}

// fail keeps the first failure and returns it. A failure found by this rank is sent to the others.
func (g *Group) fail(err error) error {
	if g.failed == nil {
		g.failed = err
		if told := (*Aborted)(nil); !errors.As(err, &told) {
			g.sendAbort(g.Rank(), g.status(err), err.Error())
		}
	}
	return g.failed
}

// Kinds of notes, by the first byte.
const (
	noteHere  = 'h' // heartbeat: the number of collectives that the sender has started
	noteStop  = 's' // the sender requests a stop
	noteAbort = 'a' // the sender ends: rank that found the failure, its exit status, the reason
)

// postAll posts a note to every other rank. It ignores errors: the exchange with an unreachable
// rank reports them.
func (g *Group) postAll(note []byte) {
	for peer := range g.Size() {
		if peer != g.Rank() {
			_ = g.link.Post(peer, note)
		}
	}
}

// abortHeader is the number of bytes of an abort note before the reason.
const abortHeader = 6

// sendAbort tells the others that this rank ends. first is the rank that found the failure.
func (g *Group) sendAbort(first, status int, reason string) {
	note := append(binary.LittleEndian.AppendUint32([]byte{noteAbort}, uint32(first)), byte(status))
	g.postAll(append(note, reason[:min(len(reason), MaxNote-len(note))]...))
}

// status returns the exit status of err by the function set by Exits, or 0.
func (g *Group) status(err error) int {
	if g.exitStatus == nil {
		return 0
	}
	return g.exitStatus(err)
}

// receiveNotes handles all notes received so far, without waiting.
func (g *Group) receiveNotes() error {
	for {
		from, note, err := g.link.Note()
		if err != nil {
			return &Lost{Rank: from, Host: g.hosts[from], Phase: g.phase, Err: err}
		}
		if len(note) == 0 {
			return nil
		}
		g.lastSeen[from] = time.Now()
		switch {
		case note[0] == noteHere && len(note) == 9:
			g.callsOf[from] = binary.LittleEndian.Uint64(note[1:])
		case note[0] == noteStop:
			g.stopRequested = true
		case note[0] == noteAbort && len(note) >= abortHeader && g.failed == nil:
			first, status, reason :=
				int(binary.LittleEndian.Uint32(note[1:]))%g.Size(), int(note[5]),
				string(note[abortHeader:])
			g.failed = &Aborted{Rank: first, Host: g.hosts[first], Status: status, Reason: reason}
			// A rank may see this one end before it receives the note of the first.
			g.sendAbort(first, status, reason)
		}
	}
}

// keepOn handles notes, sends heartbeats, and returns an error once the call has failed or its
// deadline has passed. Whoever waits for other ranks calls it often.
func (g *Group) keepOn() error {
	if err := g.receiveNotes(); err != nil {
		return err
	}
	if g.failed != nil {
		return g.failed
	}
	now := time.Now()
	if now.Sub(g.lastSent) > g.limit/8 {
		g.heartbeat()
	}
	if now.Before(g.deadline) {
		return nil
	}
	lost := g.slowestRank(now)
	return &Lost{Rank: lost, Host: g.hosts[lost], Phase: g.phase, Limit: g.limit}
}

// slowestRank returns the rank to blame at a deadline: of the ranks that have not started this
// call, the one silent longest, since ranks that wait send heartbeats. If all have started it, it
// is the peer of the exchange, or whoever has been silent longest if the peer is not.
func (g *Group) slowestRank(now time.Time) int {
	behind := -1
	for r, n := range g.callsOf {
		if n < g.calls && (behind < 0 || g.lastSeen[r].Before(g.lastSeen[behind])) {
			behind = r
		}
	}
	if behind >= 0 {
		return behind
	}
	lost := g.peer
	for r := range g.callsOf {
		if r != g.Rank() && g.lastSeen[r].Before(g.lastSeen[lost]) {
			lost = r
		}
	}
	if now.Sub(g.lastSeen[g.peer]) > g.limit/2 {
		return g.peer
	}
	return lost
}

// RequestStop asks all ranks to stop. They agree at the next Any.
func (g *Group) RequestStop() {
	if g == nil || g.stopRequested {
		return
	}
	g.stopRequested = true
	g.postAll([]byte{noteStop})
}

// StopRequested reports whether some rank has requested a stop, or the run has failed: a long
// computation may end early. It does not wait.
func (g *Group) StopRequested() bool {
	if g == nil {
		return false
	}
	return g.Failed() || g.stopRequested
}

// Failed reports whether the run has failed on some rank: a long computation may end early. It does
// not wait.
func (g *Group) Failed() bool {
	if g == nil {
		return false
	}
	if err := g.receiveNotes(); err != nil {
		g.fail(err)
	}
	return g.failed != nil
}

// Abort tells the others that this rank ends, and why. Their next call, or the call that they wait
// in, fails.
func (g *Group) Abort(why error) {
	if g == nil || g.failed != nil {
		return
	}
	g.failed = fmt.Errorf("%w: this rank has ended: %v", ErrRanks, why)
	g.sendAbort(g.Rank(), g.status(why), why.Error())
}

// Close ends the group: with all ranks together, unless something has failed.
func (g *Group) Close() error {
	if g == nil {
		return nil
	}
	if g.failed != nil { // fail or Abort has told the others
		return g.link.Close(false)
	}
	err := g.Barrier("ending")
	return errors.Join(err, g.link.Close(err == nil))
}
