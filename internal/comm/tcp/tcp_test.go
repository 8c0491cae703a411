package tcp

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"gad/internal/comm"
	"gad/internal/comm/commtest"
)

var secret = []byte("a secret of the tests")

// The tests mostly wait: more of them at once than there are processors.
func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "8")
	os.Exit(m.Run())
}

// free is an address of this machine where nobody listens.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// open connects n ranks; change may change what one of them is told.
func open(t *testing.T, n int, limit time.Duration,
	change func(rank int, c *Config)) ([]*Link, []error) {
	t.Helper()
	addr := free(t)
	links, errs := make([]*Link, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		c := Config{Rank: r, Size: n, Addr: addr, Secret: secret, Limit: limit}
		if change != nil {
			change(r, &c)
		}
		if c.Size == 0 { // it is not started
			continue
		}
		wg.Go(func() { links[r], errs[r] = Open(c) })
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, l := range links {
			if l != nil {
				l.Close(false)
			}
		}
	})
	return links, errs
}

// What ranks gather, sum and agree on over TCP is what they do in one process.
func TestGroup(t *testing.T) {
	t.Parallel()
	const elements = 3<<20 + 5 // several frames, and chunks of a sum
	fill := func(rank int) []float32 {
		x := make([]float32, elements)
		for i := range x {
			x[i] = float32((i*7+rank*13)%1001) / 997
		}
		return x
	}
	work := func(g *comm.Group) ([]byte, error) {
		all, err := g.Gather("names", bytes.Repeat([]byte{byte('a' + g.Rank())}, 1000*g.Rank()))
		if err != nil {
			return nil, err
		}
		x := fill(g.Rank())
		if err := g.Sum("numbers", x); err != nil {
			return nil, err
		}
		if g.Rank() == g.Size()-1 {
			g.RequestStop()
		}
		stop, err := g.Any("stop", g.Rank() == 0)
		if err != nil || !stop {
			return nil, fmt.Errorf("stop: %v, %w", stop, err)
		}
		out := bytes.Join(all, nil)
		raw := make([]byte, 0, 4*len(x))
		for _, v := range x {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		}
		return fmt.Appendf(out, "%x", sha256.Sum256(raw)), g.Close()
	}
	for _, n := range []int{1, 2, 4} {
		want := make([][]byte, n)
		for _, err := range commtest.Run(n, time.Minute,
			func(g *comm.Group) (err error) { want[g.Rank()], err = work(g); return err }) {
			if err != nil {
				t.Fatal(err)
			}
		}
		links, errs := open(t, n, time.Minute, nil)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for r, l := range links {
			wg.Go(func() {
				g, err := comm.New(l, time.Minute)
				if err == nil {
					var got []byte
					if got, err = work(g); err == nil && !bytes.Equal(got, want[r]) {
						err = errors.New("it has other results than in one process")
					}
				}
				if err != nil {
					t.Errorf("rank %d of %d: %v", r, n, err)
				}
			})
		}
		wg.Wait()
	}
}

// A rank whose process ends is seen at once; one that ends with an error is heard.
func TestLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		end  func(g *comm.Group, l *Link)
		want string
	}{
		{"killed", func(_ *comm.Group, l *Link) {
			for _, p := range l.peers {
				if p != nil {
					p.conn.(*net.TCPConn).SetLinger(0)
					p.conn.Close()
				}
			}
		}, "rank 1 on "},
		{"closed", func(_ *comm.Group, l *Link) { l.Close(false) },
			"cannot be reached: tcp: it has closed the connection"},
		{"failed", func(g *comm.Group, _ *Link) { g.Abort(errors.New("no memory")); g.Close() },
			": no memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			links, errs := open(t, 4, time.Minute, nil)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for r, l := range links {
				wg.Go(func() {
					g, err := comm.New(l, time.Minute)
					if r == 1 && err == nil {
						c.end(g, l)
						return
					}
					begun := time.Now()
					if err == nil { // or else rank 1 was gone before this one had heard all
						_, err = g.Gather("anything", nil)
					}
					if err == nil || !strings.Contains(err.Error(), c.want) ||
						!strings.Contains(err.Error(), "rank 1 on ") {
						t.Errorf("rank %d: %v, want %q", r, err, c.want)
					}
					if took := time.Since(begun); took > time.Minute {
						t.Errorf("rank %d: after %v", r, took)
					}
				})
			}
			wg.Wait()
		})
	}
}

// What can be wrong when ranks are started, and what they say.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		n      int
		change func(rank int, c *Config)
		want   map[int]string // by rank, what the error contains; "" is none
	}{
		{"short secret", 1, func(_ int, c *Config) { c.Secret = secret[:15] },
			map[int]string{0: "tcp: the secret has 15 bytes: must have at least 16: set GAD_RANKS_SECRET to the same random text on all ranks, such as that of: openssl rand -hex 16"}},
		{"no port", 1, func(_ int, c *Config) { c.Addr = "node0" }, map[int]string{0: "tcp: address of rank 0: address node0: missing port in address: must be host:port"}},
		{"no such rank", 1, func(_ int, c *Config) { c.Rank = 1 },
			map[int]string{0: "tcp: rank 1 of 1: ranks count from 0"}},
		{"another secret", 2, func(r int, c *Config) {
			if r == 1 {
				c.Secret = []byte("another secret of it")
			}
		}, map[int]string{0: "it has another secret",
			1: ": it has another secret: set GAD_RANKS_SECRET alike on all ranks"}},
		{"another number", 2, func(r int, c *Config) {
			if r == 1 {
				c.Size = 4
			}
		}, map[int]string{0: "rank 1 did not come within 1s (trainer.rank_timeout); sent away: ",
			1: ": refused: there are 2 ranks, not 4: start all with the same number"}},
		{"absent", 4, func(r int, c *Config) {
			if r == 2 || r == 3 {
				c.Size = 0
			}
		}, map[int]string{0: "rank 2, 3 did not come within 1s (trainer.rank_timeout): start all 4 ranks with the same address", 1: "tcp: rank 0 does not send the ranks' addresses: "}},
		{"no rank 0", 2, func(r int, c *Config) {
			if r == 0 {
				c.Size = 0
			}
		},
			map[int]string{
				1: " did not answer within 1s (trainer.rank_timeout): dial tcp 127.0.0.1:"}},
		{"twice", 4, func(r int, c *Config) {
			if r == 2 {
				c.Rank = 1
			}
		}, map[int]string{0: "rank 2 did not come within 1s (trainer.rank_timeout); sent away: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			begun := time.Now()
			_, errs := open(t, c.n, time.Second, c.change)
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("took %v", took)
			}
			for r, want := range c.want {
				if errs[r] == nil || !strings.Contains(errs[r].Error(), want) ||
					strings.Contains(errs[r].Error(), "\n") {
					t.Errorf("rank %d: %v\nwant %q", r, errs[r], want)
				}
			}
		})
	}
}

// Rank 0 is not disturbed by who knows nothing: one that says nothing, one that says
// something else, one that plays back what another rank has said.
func TestStrangers(t *testing.T) {
	t.Parallel()
	addr := free(t)
	var links [2]*Link
	var errs [2]error
	var wg sync.WaitGroup
	start := func(r int) {
		wg.Go(func() {
			links[r], errs[r] = Open(
				Config{Rank: r, Size: 2, Addr: addr, Secret: secret, Limit: 20 * time.Second})
		})
	}
	start(0)
	dial := func() net.Conn {
		for {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				t.Cleanup(func() { conn.Close() })
				return conn
			}
			time.Sleep(time.Millisecond)
		}
	}
	dial() // says nothing
	fmt.Fprint(dial(), "GET / HTTP/1.1\r\nHost: rank0\r\nUser-Agent: scanner of ports\r\n\r\n")
	nonce := make([]byte, challenge)
	rand.Read(nonce)
	says := func(rank uint32, conn net.Conn, proofOf []byte) byte {
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		conn.Write(append([]byte(hello), nonce...))
		answer := make([]byte, len(hello)+2*challenge)
		if _, err := io.ReadFull(conn, answer); err != nil {
			t.Fatal(err)
		}
		words := binary.LittleEndian.AppendUint32(nil, rank)
		words = binary.LittleEndian.AppendUint32(words, 2)
		words = binary.LittleEndian.AppendUint32(words, 1)
		conn.Write(append(words, proof(secret, "dials", proofOf, words)...))
		var ok [1]byte
		if _, err := io.ReadFull(conn, ok[:]); err != nil {
			return 'x'
		}
		return ok[0]
	}
	if got := says(1, dial(), make([]byte, 2*challenge)); got != 'x' {
		t.Errorf("a proof for another challenge was answered with %d", got)
	}
	start(1)
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		defer l.Close(false)
	}
	go links[1].Exchange(0, []byte("hello"), nil, nil)
	in := make([]byte, 5)
	if err := links[0].Exchange(1, nil, in, func() error { return nil }); err != nil ||
		string(in) != "hello" {
		t.Errorf("%q, %v", in, err)
	}
}

// Rank 0 tells of a rank with another secret when it comes, and not only when the time is up.
func TestRejected(t *testing.T) {
	t.Parallel()
	said := make(chan string, 8)
	open(t, 2, time.Second, func(r int, c *Config) {
		if c.Rejected = func(who string) { said <- who }; r == 1 {
			c.Secret = []byte("another secret of it")
		}
	})
	if len(said) != 1 {
		t.Fatalf("told %d times", len(said))
	}
	if who := <-said; !strings.HasPrefix(who, "127.0.0.1:") ||
		!strings.Contains(who, ": it has another secret: set GAD_RANKS_SECRET alike on all ranks") {
		t.Error(who)
	}
}

// Rank 0 listens beside its launcher's port.
func TestRanksAddr(t *testing.T) {
	for addr, want := range map[string]string{
		"node0:29500": "node0:29501", "node0": "node0:29600", "10.0.0.1": "10.0.0.1:29600",
		"[fd00::1]:400": "[fd00::1]:401", "fd00::1": "[fd00::1]:29600",
		"node0:65535": `port "65535": must be 1 to 65534`, "node0:http": `port "http": must be 1 to 65534`, "tcp://node0": `port "//node0": must be 1 to 65534`,
	} {
		got, err := RanksAddr(addr)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", addr, got, want)
		}
	}
}

// far is a connection with another machine, or with this one by its loopback.
type far struct {
	net.Conn
	local, remote string
}

func (f far) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.ParseIP(f.local)} }
func (f far) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.remote)} }

// Ranks on rank 0's machine that came by its loopback are found by others where these have
// found rank 0, and by each other at the loopback.
func TestSeenBy(t *testing.T) {
	l := &Link{size: 5, peers: []*peer{nil,
		{conn: far{local: "127.0.1.1", remote: "127.0.0.1"}}, // on rank 0's machine
		{conn: far{local: "10.0.0.1", remote: "10.0.0.2"}},
		{conn: far{local: "fd00::1", remote: "fd00::3"}},
		{conn: far{local: "127.0.1.1", remote: "127.0.0.1"}},
	}}
	for _, c := range []struct {
		by, to int
		want   string
	}{{4, 1, "127.0.0.1"}, {2, 1, "10.0.0.1"}, {3, 1, "fd00::1"}, {3, 2, "10.0.0.2"},
		{1, 2, "10.0.0.2"}, {4, 3, "fd00::3"}} {
		if got := l.seenBy(c.by, c.to).String(); got != c.want {
			t.Errorf("rank %d finds rank %d at %s, want %s", c.by, c.to, got, c.want)
		}
	}
}

// Ranks meet on an IPv6 address, and on a name that has one of each kind.
func TestAddresses(t *testing.T) {
	for _, host := range []string{"::1", "localhost"} {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			probe, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
			if err != nil {
				t.Skipf("NOT TESTED: %s: %v", host, err)
			}
			addr := net.JoinHostPort(host, fmt.Sprint(probe.Addr().(*net.TCPAddr).Port))
			probe.Close()
			links, errs := open(t, 4, 20*time.Second, func(_ int, c *Config) { c.Addr = addr })
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			go links[3].Exchange(2, []byte("hello"), nil, nil)
			in := make([]byte, 5)
			if err := links[2].Exchange(3, nil, in, func() error { return nil }); err != nil ||
				string(in) != "hello" {
				t.Errorf("%q, %v", in, err)
			}
		})
	}
}

// A port that is taken is said at once.
func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, err = Open(Config{Rank: 0, Size: 2, Addr: taken.Addr().String(), Secret: secret,
		Limit: time.Minute})
	if err == nil || !strings.Contains(err.Error(),
		"address already in use: give the ranks another port") {
		t.Error(err)
	}
}

// More silent connections than greet at once keep the ranks out only until these are given
// up: the ranks dial again.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	addr := free(t)
	var wg sync.WaitGroup
	var links [2]*Link
	var errs [2]error
	start := func(r int) {
		wg.Go(func() {
			links[r], errs[r] = Open(
				Config{Rank: r, Size: 2, Addr: addr, Secret: secret, Limit: 2 * time.Minute,
					greet: time.Second})
		})
	}
	start(0)
	for n := 0; n < atOnce+8; {
		conn, err := net.Dial("tcp", addr)
		if err != nil { // rank 0 does not listen yet
			time.Sleep(time.Millisecond)
			continue
		}
		defer conn.Close()
		n++
	}
	start(1)
	wg.Wait()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		} else {
			defer links[r].Close(false)
		}
	}
}
