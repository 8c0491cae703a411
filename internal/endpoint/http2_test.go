package endpoint_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"gad/internal/endpoint"
)

// TestDeadConnection: all requests share one connection of HTTP/2. Where a router forgets
// it without a word, it is given up, and not each request in its turn after --timeout.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	var asked, v2 atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		v2.Add(int32(r.ProtoMajor - 1))
		fmt.Fprint(w, `{"choices":[{"message":{"content":"a"}}]}`)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	router, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	var forgotten, connections atomic.Int32 // connections up to that number are forgotten
	go func() {
		for {
			in, err := router.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				in.Close()
				return
			}
			n := connections.Add(1)
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					defer way[0].Close()
					defer way[1].Close()
					b := make([]byte, 4096)
					for {
						k, err := way[0].Read(b)
						if err != nil {
							return
						}
						if n > forgotten.Load() {
							way[1].Write(b[:k])
						}
					}
				}()
			}
		}
	}()
	c, err := endpoint.New(endpoint.Options{BaseURL: "https://" + router.Addr().String() + "/v1",
		Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	tr := endpoint.Network(c)
	trusted := x509.NewCertPool()
	trusted.AddCert(s.Certificate())
	tr.TLSClientConfig = &tls.Config{RootCAs: trusted}
	if tr.HTTP2 == nil || tr.HTTP2.SendPingTimeout > time.Minute ||
		tr.HTTP2.PingTimeout > time.Minute {
		t.Fatalf("dead connections are not looked for: %+v", tr.HTTP2)
	}
	tr.HTTP2.SendPingTimeout, tr.HTTP2.PingTimeout = 200*time.Millisecond, 200*time.Millisecond
	if _, err := c.Try(t.Context(), ask("a")); err != nil {
		t.Fatal(err)
	}
	forgotten.Store(1)
	begin := time.Now()
	if _, err := c.Try(t.Context(), ask("a")); !endpoint.Transient(err) ||
		time.Since(begin) > 30*time.Second {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
	if _, err := c.Try(t.Context(), ask("a")); err != nil || connections.Load() != 2 ||
		asked.Load() != 2 || v2.Load() != 2 {
		t.Errorf("%v; %d connections, %d requests arrived, %d by HTTP/2", err, connections.Load(),
			asked.Load(), v2.Load())
	}
}
