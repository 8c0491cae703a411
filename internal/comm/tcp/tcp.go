// Package tcp connects ranks by TCP, for launchers that prepare no MPI: torchrun, srun without
// PMIx, Kubernetes jobs. It is meant for the small messages of ranks with GPUs (tokens, figures,
// agreements) while NCCL moves their gradients; gradients of CPUs go through it too, at TCP's
// speed.
//
// Every rank is connected with every other. Both ends of a connection prove that they know the
// run's secret (HMAC-SHA256 over both sides' random challenges). The messages after it are neither
// encrypted nor signed: the network between the ranks must be trusted.
package tcp

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"gad/internal/comm"
)

// Config says where the ranks meet.
type Config struct {
	Rank, Size int
	Addr       string        // host and port where rank 0 listens
	Secret     []byte        // the same on all ranks, at least LeastSecret bytes
	Limit      time.Duration // how long a rank waits for the others to connect

	// Rejected, if not nil, is called for the first few connections that are no ranks of
	// this run: one of them may be the missing rank.
	Rejected func(who string)

	greet time.Duration // greetLimit, if not 0
}

// defaultPort is the port of rank 0 if its launcher names none.
const defaultPort = 29600

// RanksAddr returns the Addr of Config for a launcher's address, with or without a port: with the
// next port, since torchrun itself may listen on the launcher's.
func RanksAddr(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return net.JoinHostPort(strings.Trim(addr, "[]"), strconv.Itoa(defaultPort)), nil
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n >= 65535 {
		return "", fmt.Errorf("port %q: must be 1 to 65534", port)
	}
	return net.JoinHostPort(host, strconv.Itoa(n+1)), nil
}

// LeastSecret is the length of the shortest secret: one side proves its knowledge to
// whoever connects, so a short one could be guessed.
const LeastSecret = 16

// Frames, sent over a connection after the greeting: a kind, a length, and the data.
const (
	frameData = 'd'
	frameNote = 'n'
	frameBye  = 'b' // the sender ends in order

	frameHeader = 5
	mostFrame   = 1 << 20
)

// atOnce is the largest number of connections whose greeting is pending.
const atOnce = 64

// greetLimit is the time in which a connection must send its greeting; others are closed.
const greetLimit = 10 * time.Second

// Link is this process among the ranks.
type Link struct {
	rank, size int
	peers      []*peer // [size]; nil is this rank

	mu    sync.Mutex
	notes []note
	wake  chan struct{} // signals a change of a peer's state
}

type note struct {
	from int
	text []byte
}

// peer is the connection with another rank. All but conn is guarded by the link's mu.
type peer struct {
	conn     net.Conn
	in       []byte     // data received
	err      error      // why nothing more can be received
	bye      bool       // the rank has ended in order
	reported bool       // Note has returned err
	out      [][]byte   // frames to send
	flushed  bool       // all of out was sent, and CloseWrite called
	more     *sync.Cond // signals a change of out or end
	end      bool       // no more frames are added to out
}

// Open connects the ranks; all of them call it, and it returns when all are connected.
func Open(c Config) (*Link, error) {
	if c.Rank < 0 || c.Rank >= c.Size {
		return nil, fmt.Errorf("tcp: rank %d of %d: ranks count from 0", c.Rank, c.Size)
	}
	if c.greet == 0 {
		c.greet = greetLimit
	}
	if len(c.Secret) < LeastSecret {
		return nil, fmt.Errorf("tcp: the secret has %d bytes: must have at least %d: set GAD_RANKS_SECRET to the same random text on all ranks, such as that of: openssl rand -hex 16", len(c.Secret), LeastSecret)
	}
	host, _, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return nil, fmt.Errorf("tcp: address of rank 0: %w: must be host:port", err)
	}
	l := &Link{rank: c.Rank, size: c.Size, peers: make([]*peer, c.Size),
		wake: make(chan struct{}, 1)}
	ctx, cancel := context.WithTimeout(context.Background(), c.Limit)
	defer cancel()
	if err := l.meet(ctx, c, host); err != nil {
		for _, p := range l.peers {
			if p != nil {
				p.conn.Close()
			}
		}
		return nil, err
	}
	for r, p := range l.peers {
		if p != nil {
			p.more = sync.NewCond(&l.mu)
			go l.read(r, p)
			go l.write(p)
		}
	}
	return l, nil
}

// meet sets the peers' connections: each rank dials the ranks before it, and accepts the ranks
// after it. Rank 0 sends the others their addresses.
func (l *Link) meet(ctx context.Context, c Config, host string) error {
	at := c.Addr
	if l.rank > 0 {
		at = ":0"
	} else if _, port, err := net.SplitHostPort(c.Addr); err == nil {
		at = ":" + port
	}
	// a loopback address: listen there only
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		at = net.JoinHostPort(host, at[1:])
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", at)
	if err != nil {
		return fmt.Errorf("tcp: rank %d: %w: give the ranks another port", l.rank, err)
	}
	defer listener.Close()
	own := uint32(listener.Addr().(*net.TCPAddr).Port)
	dial := func(to int, addr string) error {
		conn, err := l.dial(ctx, c, to, addr, own)
		if err == nil {
			l.peers[to] = &peer{conn: conn}
		}
		return err
	}
	if l.rank == 0 {
		ports, err := l.accept(ctx, c, listener)
		if err != nil {
			return err
		}
		for r := 1; r < l.size; r++ {
			var table []byte
			for to := 1; to < l.size; to++ {
				table = append(table, net.JoinHostPort(l.seenBy(r, to).String(),
					fmt.Sprint(ports[to]))+"\n"...)
			}
			if _, err := l.peers[r].conn.Write(
				append(binary.LittleEndian.AppendUint32(nil, uint32(len(table))),
					table...)); err != nil {
				return fmt.Errorf("tcp: rank %d: addresses of the ranks: %w", r, err)
			}
		}
		return nil
	}
	if err := dial(0, c.Addr); err != nil {
		return err
	}
	table, err := l.table(ctx)
	if err != nil {
		return err
	}
	for r := 1; r < l.rank; r++ {
		if err := dial(r, table[r-1]); err != nil {
			return err
		}
	}
	_, err = l.accept(ctx, c, listener)
	return err
}

// seenBy returns the address at which rank r reaches rank to, where both are connected with this
// rank 0: the address that to connected from. If to is on this machine and connected by loopback (a
// host's own name may mean 127.0.1.1) and r is elsewhere, it is the address at which r reached this
// machine.
func (l *Link) seenBy(r, to int) net.IP {
	other, asker := l.peers[to].conn.RemoteAddr().(*net.TCPAddr).IP, l.peers[r].conn
	if other.IsLoopback() && !asker.RemoteAddr().(*net.TCPAddr).IP.IsLoopback() {
		return asker.LocalAddr().(*net.TCPAddr).IP
	}
	return other
}

// table receives from rank 0, once all are connected, the addresses at which ranks 1, 2, ...
// listen.
func (l *Link) table(ctx context.Context) ([]string, error) {
	conn := l.peers[0].conn
	end, _ := ctx.Deadline()
	conn.SetDeadline(end)
	defer conn.SetDeadline(time.Time{})
	var head [4]byte
	_, err := io.ReadFull(conn, head[:])
	n := binary.LittleEndian.Uint32(head[:])
	if err == nil && n > mostFrame {
		err = fmt.Errorf("%d bytes", n)
	}
	text := make([]byte, min(n, mostFrame))
	if err == nil {
		_, err = io.ReadFull(conn, text)
	}
	list := strings.Fields(string(text))
	if err == nil && len(list) != l.size-1 {
		err = fmt.Errorf("%d of %d", len(list), l.size-1)
	}
	if err != nil {
		return nil, fmt.Errorf("tcp: rank 0 does not send the ranks' addresses: %w: it waits for other ranks or has ended: see what it says", err)
	}
	return list, nil
}

// dial connects with rank to, and tries again until it listens or ctx ends. own is the port at
// which this rank listens.
func (l *Link) dial(ctx context.Context, c Config, to int, addr string,
	own uint32) (net.Conn, error) {
	var d net.Dialer
	var last error
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			if err = l.greet(conn, c, to, own); err == nil {
				return conn, nil
			}
			conn.Close()
			if errors.Is(err, errSecret) || errors.Is(err, errStranger) ||
				errors.Is(err, errRefused) {
				return nil, fmt.Errorf("tcp: rank %d at %s: %w", to, addr, err)
			}
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			if last == nil {
				last = ctx.Err()
			}
			return nil, fmt.Errorf("tcp: rank %d at %s did not answer within %v (trainer.rank_timeout): %w: is it started, and its port open?", to, addr, c.Limit, last)
		case <-time.After(wait):
		}
	}
}

var (
	errSecret   = errors.New("it has another secret: set GAD_RANKS_SECRET alike on all ranks")
	errRefused  = errors.New("refused")
	errStranger = errors.New(
		"it is no rank of gad, or of another version: give the ranks another port")
)

const (
	hello     = "gad ranks 1\n"
	challenge = 32
)

// proof returns the HMAC by which a side ("dials" or "accepts") shows that it knows the secret and
// sent the message says.
func proof(secret []byte, side string, nonces, says []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(side))
	h.Write(nonces)
	h.Write(says)
	return h.Sum(nil)
}

// greet is the dialling side of the greeting: it sends rank, size and port own, with proof, and
// checks the proof of rank to.
func (l *Link) greet(conn net.Conn, c Config, to int, own uint32) error {
	conn.SetDeadline(time.Now().Add(c.greet))
	defer conn.SetDeadline(time.Time{})
	nonces := make([]byte, 2*challenge)
	if _, err := rand.Read(nonces[:challenge]); err != nil {
		return err
	}
	if _, err := conn.Write(append([]byte(hello), nonces[:challenge]...)); err != nil {
		return err
	}
	answer := make([]byte, len(hello)+challenge+sha256.Size)
	if n, err := io.ReadFull(conn, answer); err != nil {
		if n > 0 && !strings.HasPrefix(hello, string(answer[:min(n, len(hello))])) {
			return errStranger
		}
		return err
	}
	if string(answer[:len(hello)]) != hello {
		return errStranger
	}
	copy(nonces[challenge:], answer[len(hello):])
	var server [4]byte
	binary.LittleEndian.PutUint32(server[:], uint32(to))
	if !hmac.Equal(answer[len(hello)+challenge:], proof(c.Secret, "accepts", nonces, server[:])) {
		return errSecret
	}
	// Start the time anew: the other side counts this rank as connected once it has answered.
	conn.SetDeadline(time.Now().Add(c.greet))
	says := binary.LittleEndian.AppendUint32(nil, uint32(l.rank))
	says = binary.LittleEndian.AppendUint32(says, uint32(l.size))
	says = binary.LittleEndian.AppendUint32(says, own)
	if _, err := conn.Write(append(says, proof(c.Secret, "dials", nonces, says)...)); err != nil {
		return err
	}
	var n [1]byte
	if _, err := io.ReadFull(conn, n[:]); err != nil {
		return err
	}
	reason := make([]byte, n[0])
	if _, err := io.ReadFull(conn, reason); err != nil {
		return err
	}
	if len(reason) > 0 {
		return fmt.Errorf("%w: %s", errRefused, reason)
	}
	return nil
}

// welcome is the accepting side of the greeting. It returns the rank that dialled and the port at
// which it listens.
func (l *Link) welcome(conn net.Conn, c Config) (rank int, port uint32, err error) {
	conn.SetDeadline(time.Now().Add(c.greet))
	defer conn.SetDeadline(time.Time{})
	first := make([]byte, len(hello)+challenge)
	if _, err := io.ReadFull(conn, first); err != nil {
		return 0, 0, err
	}
	if string(first[:len(hello)]) != hello {
		return 0, 0, errStranger
	}
	nonces := append([]byte(nil), first[len(hello):]...)
	own := make([]byte, challenge)
	if _, err := rand.Read(own); err != nil {
		return 0, 0, err
	}
	nonces = append(nonces, own...)
	var me [4]byte
	binary.LittleEndian.PutUint32(me[:], uint32(l.rank))
	answer := append([]byte(hello), own...)
	if _, err := conn.Write(append(answer,
		proof(c.Secret, "accepts", nonces, me[:])...)); err != nil {
		return 0, 0, err
	}
	says := make([]byte, 12+sha256.Size)
	if _, err := io.ReadFull(conn, says); err != nil {
		return 0, 0, fmt.Errorf("%w (%w)", errSecret, err) // it closed after it saw the proof
	}
	if !hmac.Equal(says[12:], proof(c.Secret, "dials", nonces, says[:12])) {
		return 0, 0, errSecret
	}
	if n := binary.LittleEndian.Uint32(says[4:]); n != uint32(l.size) {
		err = fmt.Errorf("there are %d ranks, not %d: start all with the same number", l.size, n)
	}
	return int(binary.LittleEndian.Uint32(says)), binary.LittleEndian.Uint32(says[8:]), err
}

// accept waits for the ranks after this one, and returns the ports at which they listen. Other
// connections are rejected.
func (l *Link) accept(ctx context.Context, c Config,
	listener net.Listener) (ports []uint32, err error) {
	type guest struct {
		conn net.Conn
		rank int
		port uint32
		err  error
	}
	ports = make([]uint32, l.size)
	missing := l.size - 1 - l.rank
	guests := make(chan guest)
	ended := make(chan struct{})
	defer close(ended)
	room := make(chan struct{}, atOnce)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			select {
			case room <- struct{}{}:
			case <-ended:
				conn.Close()
				return
			}
			go func() {
				defer func() { <-room }()
				g := guest{conn: conn}
				g.rank, g.port, g.err = l.welcome(conn, c)
				select {
				case guests <- g:
				case <-ended:
					conn.Close()
				}
			}()
		}
	}()
	var rejected []string
	for missing > 0 {
		select {
		case g := <-guests:
			if g.err == nil && (g.rank <= l.rank || g.rank >= l.size || l.peers[g.rank] != nil) {
				g.err = fmt.Errorf(
					"rank %d is here already, or too many: each process needs a rank of its own",
					g.rank)
			}
			reason := ""
			if g.err != nil && !errors.Is(g.err, errSecret) { // a stranger gets no reason
				reason = g.err.Error()
			}
			reason = reason[:min(len(reason), 255)]
			if g.err == nil || reason != "" {
				if _, err := g.conn.Write(
					append([]byte{byte(len(reason))}, reason...)); g.err == nil {
					g.err = err
				}
			}
			if g.err != nil {
				if len(rejected) < 4 {
					who := fmt.Sprintf("%s: %v", g.conn.RemoteAddr(), g.err)
					if rejected = append(rejected, who); c.Rejected != nil {
						c.Rejected(who)
					}
				}
				g.conn.Close()
				continue
			}
			l.peers[g.rank], ports[g.rank] = &peer{conn: g.conn}, g.port
			missing--
		case <-ctx.Done():
			var absent []string
			for r := l.rank + 1; r < l.size; r++ {
				if l.peers[r] == nil {
					absent = append(absent, fmt.Sprint(r))
				}
			}
			text := ""
			if len(rejected) > 0 {
				text = "; sent away: " + strings.Join(rejected, ", ")
			}
			return nil, fmt.Errorf("tcp: rank %d at %s: rank %s did not come within %v (trainer.rank_timeout)%s: start all %d ranks with the same address", l.rank, listener.Addr(), strings.Join(absent, ", "), c.Limit, text, l.size)
		}
	}
	return ports, nil
}

// read receives the frames of a peer until the connection ends. It runs in its own goroutine.
func (l *Link) read(from int, p *peer) {
	var head [frameHeader]byte
	var err error
	for err == nil {
		if _, err = io.ReadFull(p.conn, head[:]); err != nil {
			break
		}
		n := binary.LittleEndian.Uint32(head[1:])
		if n > mostFrame || head[0] == frameNote && n > comm.MaxNote {
			err = fmt.Errorf("tcp: a message of %d bytes", n)
			break
		}
		text := make([]byte, n)
		if _, err = io.ReadFull(p.conn, text); err != nil {
			break
		}
		l.mu.Lock()
		switch head[0] {
		case frameData:
			p.in = append(p.in, text...)
		case frameNote:
			l.notes = append(l.notes, note{from, text})
		case frameBye:
			p.bye = true
		default:
			err = fmt.Errorf("tcp: a message of kind %q", head[0])
		}
		l.mu.Unlock()
		l.signal()
	}
	if err == io.EOF {
		err = errors.New("tcp: it has closed the connection")
	}
	l.mu.Lock()
	p.err = err
	l.mu.Unlock()
	l.signal()
}

// signal wakes the goroutine that waits in Exchange or Close.
func (l *Link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// write sends the frames in p.out until p.end. It runs in its own goroutine.
func (l *Link) write(p *peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for len(p.out) == 0 && !p.end {
			p.more.Wait()
		}
		if len(p.out) == 0 {
			break
		}
		out := net.Buffers(p.out)
		p.out = nil
		l.mu.Unlock()
		_, err := out.WriteTo(p.conn)
		l.mu.Lock()
		if err != nil {
			break // read reports the error too
		}
	}
	if c, ok := p.conn.(*net.TCPConn); ok {
		c.CloseWrite()
	}
	p.flushed = true
	l.signal()
}

// enqueue copies data into frames of a kind, which write sends.
func (l *Link) enqueue(to int, kind byte, text []byte) {
	p := l.peers[to]
	l.mu.Lock()
	defer l.mu.Unlock()
	for first := true; first || len(text) > 0; first = false {
		part := text[:min(len(text), mostFrame)]
		frame := binary.LittleEndian.AppendUint32([]byte{kind}, uint32(len(part)))
		p.out = append(p.out, append(frame, part...))
		text = text[len(part):]
	}
	p.more.Signal()
}

// Rank returns this process's number.
func (l *Link) Rank() int { return l.rank }

// Size returns the number of ranks.
func (l *Link) Size() int { return l.size }

// pause is the interval at which keepOn is called while nothing is received.
const pause = 2 * time.Millisecond

// Exchange sends out to a rank and fills in with the bytes from it.
func (l *Link) Exchange(to int, out, in []byte, keepOn func() error) error {
	if len(out) > 0 {
		l.enqueue(to, frameData, out)
	}
	p := l.peers[to]
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for asked := time.Now(); len(in) > 0; {
		l.mu.Lock()
		n := copy(in, p.in)
		if in, p.in = in[n:], p.in[n:]; len(p.in) == 0 {
			p.in = nil
		}
		err := p.err
		l.mu.Unlock()
		if len(in) == 0 {
			break
		}
		if err != nil {
			return err
		}
		if time.Since(asked) > pause {
			if err := keepOn(); err != nil {
				return err
			}
			asked = time.Now()
		}
		timer.Reset(pause)
		select {
		case <-l.wake:
		case <-timer.C:
		}
	}
	return nil
}

// ExchangeFloats sends out to a rank and fills in with the numbers from it.
func (l *Link) ExchangeFloats(to int, out, in []float32, keepOn func() error) error {
	raw := make([]byte, 0, 4*len(out))
	for _, x := range out {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	data := make([]byte, 4*len(in))
	if err := l.Exchange(to, raw, data, keepOn); err != nil {
		return err
	}
	for i := range in {
		in[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return nil
}

// Post sends a note without waiting.
func (l *Link) Post(to int, text []byte) error {
	l.enqueue(to, frameNote, text)
	return nil
}

// Note returns the next note received. After the notes it returns the error of a broken connection,
// once.
func (l *Link) Note() (from int, text []byte, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.notes) > 0 {
		n := l.notes[0]
		l.notes = l.notes[1:]
		return n.from, n.text, nil
	}
	for r, p := range l.peers {
		if p != nil && p.err != nil && !p.bye && !p.reported {
			p.reported = true
			return r, nil, p.err
		}
	}
	return 0, nil, nil
}

// The longest times that Close waits for its frames to be sent and the others to close.
const (
	lastWords  = 500 * time.Millisecond
	orderlyEnd = 2 * time.Second
)

// Close ends the connections once all frames are sent and the other ends have closed, or after
// lastWords, orderlyEnd if orderly.
func (l *Link) Close(orderly bool) error {
	wait := lastWords
	if orderly {
		wait = orderlyEnd
	}
	for r, p := range l.peers {
		if p == nil {
			continue
		}
		if orderly {
			l.enqueue(r, frameBye, nil)
		}
		l.mu.Lock()
		p.end = true
		p.more.Signal()
		l.mu.Unlock()
	}
	done := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, p := range l.peers {
			// Closing before the other end has read all would take it away.
			if p != nil && (!p.flushed || p.err == nil) {
				return false
			}
		}
		return true
	}
	for begun := time.Now(); !done() && time.Since(begun) < wait; {
		select {
		case <-l.wake:
		case <-time.After(pause):
		}
	}
	for _, p := range l.peers {
		if p != nil {
			p.conn.Close()
		}
	}
	return nil
}
