// Package endpoint sends requests to an OpenAI-compatible server: chat completions, paced and
// retried, and the batch API. Answers that were paid for are stored by internal/journal.
//
//	endpoint.go  a client, its options and keys: start here
//	chat.go      one request: its body, answer and errors
//	gate.go      the pace that all requests share
//	each.go      many requests, with retries
//	batch.go     the batch API
//	prices.go    costs
//	modes.go     whether file modes protect a key
//
// The key never appears in an error, a record or anything that Say prints, and goes to no other
// host: redirects are refused.
package endpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"gad/internal/vfs"
)

// Options describe an endpoint and its limits.
type Options struct {
	BaseURL           string  // such as https://api.openai.com/v1
	Key               string  // sent as a bearer token; "" sends none
	InsecureHTTP      bool    // http:// to another machine is allowed
	Concurrency       int     // requests in flight at most; 0 is 16
	RequestsPerMinute float64 // 0: from the server's headers
	TokensPerMinute   float64 // prompt and answer together; 0: from the server's headers

	// Limits of prompts alone and of answers alone, for endpoints that count them separately.
	InputTokensPerMinute, OutputTokensPerMinute float64

	Timeout time.Duration // of one try; 0 is 10 minutes
	Retries int           // tries after the first; 0 is 10, -1 is none
	// time without any answer after which Each gives up; 0 is 15 minutes
	Patience time.Duration
	// the time at which waiting for answers ends; zero: none
	Until time.Time
	Say   func(format string, args ...any) // prints a message for people; nil prints none
}

// Defaults of Options.
const (
	defaultConcurrency = 16
	defaultTimeout     = 10 * time.Minute
	defaultRetries     = 10
	defaultPatience    = 15 * time.Minute
)

// Client sends requests to one endpoint. Its methods may be called from several goroutines, which
// share one pace.
type Client struct {
	o          Options
	base       *url.URL
	http       *http.Client
	gate       *gate
	lastReport atomic.Int64 // Unix seconds at which Call last reported a retry
}

// ErrOptions is wrapped by errors of New, KeyFromEnv and KeyFromFile about unusable options.
var ErrOptions = errors.New("endpoint: options")

type optionError struct{ text string }

func (e optionError) Error() string        { return e.text }
func (e optionError) Is(target error) bool { return target == ErrOptions }

// refuse returns an error with the text "endpoint: " and the formatted message. errors.Is finds
// ErrOptions in it, but its text does not contain that of ErrOptions.
func refuse(format string, args ...any) error {
	return optionError{"endpoint: " + fmt.Sprintf(format, args...)}
}

// New returns a client of the endpoint after checking the options. It opens no connection.
func New(o Options) (*Client, error) {
	u, err := checkURL(o.BaseURL, o.InsecureHTTP)
	if err != nil {
		return nil, err
	}
	if err := checkKey(o.Key, "the key"); o.Key != "" && err != nil {
		return nil, err
	}
	if o.Concurrency < 0 || o.Concurrency > 4096 {
		return nil, refuse("concurrency %d: must be 1 to 4096", o.Concurrency)
	}
	if o.RequestsPerMinute < 0 || o.TokensPerMinute < 0 || o.InputTokensPerMinute < 0 ||
		o.OutputTokensPerMinute < 0 {
		return nil,
			refuse(
				"%g requests, %g tokens, %g of input and %g of output per minute: must not be negative",
				o.RequestsPerMinute, o.TokensPerMinute, o.InputTokensPerMinute,
				o.OutputTokensPerMinute)
	}
	if o.Concurrency == 0 {
		o.Concurrency = defaultConcurrency
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.Retries == 0 {
		o.Retries = defaultRetries
	}
	if o.Patience <= 0 {
		o.Patience = defaultPatience
	}
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	c := &Client{o: o, base: u, gate: newGate(o)}
	c.http = &http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			ForceAttemptHTTP2:      true,
			TLSHandshakeTimeout:    30 * time.Second,
			MaxIdleConns:           o.Concurrency,
			MaxIdleConnsPerHost:    o.Concurrency,
			IdleConnTimeout:        90 * time.Second,
			ExpectContinueTimeout:  time.Second,
			MaxResponseHeaderBytes: 1 << 20,
			// A connection that is dead, which all requests share, is found out while they wait.
			HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second,
				PingTimeout: 20 * time.Second},
		},
		// A redirect is an answer, and Try refuses it: the key does not follow.
		CheckRedirect: func(*http.Request,
			[]*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	return c, nil
}

// Loopback reports whether a base URL names this machine.
func Loopback(base string) bool {
	u, err := url.Parse(base)
	return err == nil && loopback(u)
}

func loopback(u *url.URL) bool {
	host := u.Hostname()
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// CheckURL refuses a base URL that New would refuse, before anybody looks for a key.
func CheckURL(base string, insecure bool) error {
	_, err := checkURL(base, insecure)
	return err
}

// checkURL parses and checks a base URL. Its errors never show user information, which may be a
// secret.
func checkURL(base string, insecure bool) (*url.URL, error) {
	if base == "" {
		return nil, refuse("no base URL: give the part before /chat/completions, such as https://api.openai.com/v1")
	}
	u, err := url.Parse(strings.TrimRight(base, "/"))
	switch {
	case err != nil:
		return nil,
			refuse("the base URL cannot be read: give one such as https://api.openai.com/v1")
	case u.User != nil:
		return nil,
			refuse(
				"base URL of host %q has a user or password in it: give the key in the environment",
				u.Host)
	case strings.Contains(base, "@"): // a password where this does not look for one
		return nil, refuse("the base URL has an @ in it: give one such as https://api.openai.com/v1, and the key in the environment")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, refuse("base URL %q: must begin with https:// or http://", base)
	case u.Hostname() == "":
		return nil, refuse("base URL %q: has no host", base)
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return nil,
			refuse(
				"base URL of host %q has a query or a fragment: give the part before /chat/completions",
				u.Host)
	case strings.HasSuffix(u.Path, "/completions"):
		return nil, refuse("base URL %q: give the part before /chat/completions", base)
	case u.Scheme == "http" && !loopback(u) && !insecure:
		return nil, refuse("base URL %q: http:// to another machine sends key and prompts as plain text: use https://, or allow it with --insecure-http", base)
	}
	return u, nil
}

// checkKey returns an error for a key that cannot stand in a header. The error does not show the
// key.
func checkKey(key, where string) error {
	if strings.ContainsFunc(key,
		func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsPrint(r) || r == ' ' }) {
		return refuse("%s has spaces, line ends or other characters that no key has", where)
	}
	if len(key) > 16<<10 {
		return refuse("%s has %d bytes: that is no key", where, len(key))
	}
	return nil
}

// KeyFromEnv returns the key in the environment variable name.
func KeyFromEnv(name string) (string, error) {
	plain := func(r rune) bool {
		return r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z'
	}
	if name == "" || len(name) > 64 ||
		strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		// Not shown: somebody may have given the key itself.
		return "", refuse("what is given as the key's variable is not the name of an environment variable, such as OPENAI_API_KEY: give the name, never the key")
	}
	key := strings.TrimSpace(os.Getenv(name))
	if key == "" {
		return "",
			refuse("the environment variable %s is not set: export it with the key of the endpoint",
				name)
	}
	return key, checkKey(key, "the environment variable "+name)
}

// keyLike reports whether path looks like a key given in place of a file's name.
func keyLike(path string) bool {
	return strings.HasPrefix(path, "sk-") || len(path) >= 20 && !strings.ContainsAny(path, `/\.`)
}

// KeyFromFile returns the key in a file, which only its owner may be able to read.
func KeyFromFile(fsys vfs.FS, path string) (string, error) {
	info, err := fsys.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if keyLike(path) {
			return "", refuse("the key file does not exist: give the name of a file that has the key, never the key")
		}
		return "", refuse("key file %s: does not exist", path)
	case err != nil:
		return "", refuse("key file %s: cannot be read", path)
	case !info.Mode().IsRegular():
		return "", refuse("key file %s: is not a file", path)
	case info.Mode().Perm()&0o077 != 0 && secretModes:
		return "", refuse("key file %s: mode %#o: others can read it: chmod 600 %s", path,
			info.Mode().Perm(), path)
	case info.Size() > 16<<10:
		return "", refuse("key file %s: has %d bytes: that is no key", path, info.Size())
	}
	raw, err := fsys.ReadFile(path)
	if err != nil {
		return "", refuse("key file %s: cannot be read", path)
	}
	key := strings.TrimSpace(string(raw))
	if key == "" {
		return "", refuse("key file %s: is empty", path)
	}
	return key, checkKey(key, "key file "+path)
}

// Host returns the endpoint's host, for messages.
func (c *Client) Host() string { return c.base.Host }

// clean returns a server's text for display: at most 200 characters on one line, without the key.
func (c *Client) clean(text string) string {
	if c.o.Key != "" {
		text = strings.ReplaceAll(text, c.o.Key, "[key]")
	}
	text = strings.Join(strings.FieldsFunc(text,
		func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if r := []rune(text); len(r) > 200 {
		text = string(r[:200]) + "..."
	}
	return text
}
