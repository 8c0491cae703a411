package endpoint

import (
	"net/http"
	"time"
)

// SetTransport has c ask by another transport than the network.
func SetTransport(c *Client, t http.RoundTripper) { c.http.Transport = t }

// Network is c's transport.
func Network(c *Client) *http.Transport { return c.http.Transport.(*http.Transport) }

// Longest is how long a request would wait for its share of the limits.
func Longest(c *Client, r Request) (d time.Duration) {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	now := time.Now()
	need := c.gate.estimate(&pass{bytes: 1, choices: 1})
	for i := range c.gate.paces {
		d = max(d, c.gate.paces[i].earn(need[i], now).Sub(now))
	}
	return d
}
