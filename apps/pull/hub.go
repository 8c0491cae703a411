package pull

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Bounds of a hub's answers.
const (
	maxList      = 64 << 20 // bytes of a list of files, all pages together
	maxPages     = 1000     // of a list of files
	maxRedirects = 10
	maxMessage   = 64 << 10         // bytes of an error's body
	maxWait      = 10 * time.Minute // longest wait that a hub may ask for
	listTime     = 2 * time.Minute  // for one request of a list
)

// hub is the client of one endpoint. The token goes to the endpoint's own origin (scheme, host and
// port) and to no other. No error shows the token, or the query of an address: a content delivery
// network is addressed with signatures in it.
type hub struct {
	base    *url.URL
	http    *http.Client
	token   string
	timeout time.Duration
	retries int
	pause   time.Duration
	say     func(format string, args ...any)

	answered bool // any request was answered; before, few tries show that there is no network
}

// newHub returns a client of o's endpoint.
func newHub(o Options) (*hub, error) {
	base, err := checkEndpoint(o.Endpoint, o.InsecureHTTP)
	if err != nil {
		return nil, err
	}
	h := &hub{base: base, token: o.Token, timeout: o.Timeout, retries: o.Retries, pause: o.pause,
		say: o.Say}
	h.http = &http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			ForceAttemptHTTP2:      true,
			TLSHandshakeTimeout:    30 * time.Second,
			MaxIdleConnsPerHost:    2,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: 1 << 20,
			DisableCompression:     true, // sizes and offsets are those of the file
		},
		// A redirect is an answer: get decides whether to follow it, and with what headers.
		CheckRedirect: func(*http.Request,
			[]*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	return h, nil
}

// checkEndpoint parses the address of an endpoint. Its errors never show user information, which
// may be a secret.
func checkEndpoint(endpoint string, insecure bool) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil || u.User != nil || strings.Contains(endpoint, "@"):
		return nil, fmt.Errorf("%w: HF_ENDPOINT cannot be read, or has a user or password in it: give an address such as %s, and a token in HF_TOKEN", ErrName, publicHub)
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, fmt.Errorf("%w: HF_ENDPOINT %q: must begin with https:// or http://", ErrName,
			endpoint)
	case u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%w: HF_ENDPOINT %q: must be an address such as %s", ErrName,
			endpoint, publicHub)
	case u.Scheme == "http" && !loopback(u) && !insecure:
		return nil, fmt.Errorf("%w: HF_ENDPOINT %q: http:// to another machine can be read and changed on its way: use https://, or allow it with --insecure-http", ErrName, endpoint)
	}
	return u, nil
}

// loopback reports whether a URL's host is this machine.
func loopback(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// address returns a URL at the endpoint. path begins with a slash and is escaped.
func (h *hub) address(path, query string) *url.URL {
	u := *h.base
	u.RawPath = strings.TrimRight(u.EscapedPath(), "/") + path
	u.Path, _ = url.PathUnescape(u.RawPath) // escaped by us
	u.RawQuery = query
	return &u
}

// failure is the error of one try.
type failure struct {
	kind  error // a sentinel of the package
	text  string
	retry bool          // worth another try
	wait  time.Duration // time before it that the server asks for
}

func (f *failure) Error() string        { return "pull: " + f.text }
func (f *failure) Is(target error) bool { return target == f.kind }

// permanent returns a failure that another try would meet again.
func permanent(kind error, format string, args ...any) *failure {
	return &failure{kind: kind, text: fmt.Sprintf(format, args...)}
}

// transient returns a failure of the network that another try may not meet.
func transient(format string, args ...any) *failure {
	return &failure{kind: ErrNetwork, text: fmt.Sprintf(format, args...), retry: true}
}

// persist calls try until it succeeds, fails with an error that is not transient, or has failed
// retries times in a row without progress.
func (h *hub) persist(ctx context.Context, try func() (progress bool, err error)) error {
	for n := 1; ; n++ {
		progress, err := try()
		var f *failure
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.As(err, &f) || !f.retry:
			return err
		case progress:
			n = 1
		}
		if n > h.retries || !h.answered && n > 1 {
			tries := "1 try"
			if n > 1 {
				tries = fmt.Sprintf("%d tries", n)
			}
			return fmt.Errorf("%w (%s): what has come is kept: run the same command again later",
				err, tries)
		}
		if f.wait > maxWait {
			return fmt.Errorf("%w: the server asks to wait %v: run the same command again then",
				err, f.wait.Round(time.Second))
		}
		wait := max(f.wait, backoff(h.pause, n))
		h.say("%s: next try in %v", f.text, wait.Round(time.Second/10))
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// backoff returns the wait before try n+1: first, doubled with each try up to a minute, less a
// random part of up to a half.
func backoff(first time.Duration, n int) time.Duration {
	d := min(first<<min(n-1, 10), time.Minute)
	return d - time.Duration(rand.Int64N(int64(d)/2+1))
}

// reply is an answer of status 200, 206 or 416, with the headers about the file that the hub sent
// before it redirected.
type reply struct {
	*http.Response
	commit, etag string // X-Repo-Commit, X-Linked-Etag; "" where the hub sent none
	own          bool   // from the endpoint itself, not from the target of a redirect
	stop         func()
}

// get requests u and follows redirects. header goes to every host, the token to the endpoint alone.
// The caller closes the reply.
func (h *hub) get(ctx context.Context, u *url.URL, header http.Header) (*reply, error) {
	r := &reply{}
	seen := map[string]bool{}
	for hop := 0; ; hop++ {
		if hop > maxRedirects || seen[u.String()] {
			return nil, permanent(ErrServer,
				"%s: redirects in a circle, or more than %d times: is HF_ENDPOINT a hub?",
				h.base.Host, maxRedirects)
		}
		seen[u.String()] = true
		ctx, cancel := context.WithCancelCause(ctx)
		silence := time.AfterFunc(h.timeout, func() { cancel(errSilent) })
		r.stop = func() { silence.Stop(); cancel(nil) }
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
		if err != nil {
			r.stop()
			return nil, permanent(ErrServer, "%s: an address that cannot be asked", u.Host)
		}
		for k, v := range header {
			q.Header[k] = v
		}
		q.Header.Set("User-Agent", "gad")
		if r.own = sameOrigin(u, h.base); r.own && h.token != "" {
			q.Header.Set("Authorization", "Bearer "+h.token)
		}
		resp, err := h.http.Do(q)
		if err != nil {
			r.stop()
			return nil, h.connectionError(ctx, u, err)
		}
		h.answered = true
		resp.Body = &watchedBody{resp.Body, silence, h.timeout}
		if r.own {
			if v := resp.Header.Get("X-Repo-Commit"); v != "" {
				r.commit = v
			}
			if v := resp.Header.Get("X-Linked-Etag"); v != "" {
				r.etag = plainEtag(v)
			}
		}
		switch resp.StatusCode {
		case http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable:
			r.Response = resp
			return r, nil
		case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
			http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
			next, err := h.follow(u, resp.Header.Get("Location"))
			resp.Body.Close()
			r.stop()
			if err != nil {
				return nil, err
			}
			u = next
		default:
			err := h.statusError(resp, u)
			resp.Body.Close()
			r.stop()
			return nil, err
		}
	}
}

// close closes the body and ends the request.
func (r *reply) close() {
	r.Body.Close()
	r.stop()
}

// follow returns the target of a redirect. It refuses http after https.
func (h *hub) follow(from *url.URL, location string) (*url.URL, error) {
	to, err := from.Parse(location)
	switch {
	case location == "" || err != nil || to.Host == "" &&
		(to.Scheme == "http" || to.Scheme == "https"):
		return nil, permanent(ErrServer, "%s: redirects to nowhere", from.Host)
	case to.Scheme != "https" && to.Scheme != "http":
		return nil, permanent(ErrServer, "%s: redirects to %s: refused: only https is followed",
			from.Host, h.clean(to.Scheme+"://"))
	case to.Scheme == "http" && from.Scheme == "https":
		return nil, permanent(ErrServer, "%s: redirects from https to http://%s: refused", from.Host,
			h.clean(to.Host))
	case to.User != nil:
		return nil, permanent(ErrServer,
			"%s: redirects to an address with a user or password in it: refused", from.Host)
	}
	to.Fragment = ""
	return to, nil
}

// sameOrigin reports whether two URLs have the same scheme, host and port.
func sameOrigin(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		if p := u.Port(); p != "" {
			return p
		}
		return map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) &&
		port(a) == port(b)
}

// errSilent ends a request when no byte has come within the timeout.
var errSilent = errors.New("silent")

// watchedBody is a body that ends its request when no byte comes within limit.
type watchedBody struct {
	io.ReadCloser
	silence *time.Timer
	limit   time.Duration
}

func (w *watchedBody) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if n > 0 {
		w.silence.Reset(w.limit)
	}
	return n, err
}

// connectionError returns the error of a connection, without the URL, whose query may be a secret.
func (h *hub) connectionError(ctx context.Context, u *url.URL, err error) error {
	var certificate *tls.CertificateVerificationError
	var in *url.Error
	if errors.As(err, &in) {
		err = in.Err
	}
	switch {
	case errors.Is(context.Cause(ctx), errSilent):
		return transient("%s: nothing has come for %v", u.Host, h.timeout)
	case errors.As(err, &certificate):
		return permanent(ErrNetwork, "%s: its certificate is not to be trusted: %s", u.Host,
			h.clean(err.Error()))
	}
	return transient("%s: %s", u.Host, h.clean(err.Error()))
}

// statusError returns the error of an answer's status.
func (h *hub) statusError(resp *http.Response, u *url.URL) error {
	code := resp.Header.Get("X-Error-Code")
	text := resp.Header.Get("X-Error-Message")
	if text == "" {
		if raw, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage)); err == nil {
			var body struct{ Error string }
			if json.Unmarshal(raw, &body) == nil {
				text = body.Error
			}
		}
	}
	if text = h.clean(text); text != "" {
		text = ": " + text
	}
	wait := retryAfter(resp.Header, time.Now())
	own := sameOrigin(u, h.base)
	switch s := resp.StatusCode; {
	case s == http.StatusTooManyRequests || s == http.StatusRequestTimeout || s >= 500 &&
		s != http.StatusNotImplemented:
		return &failure{kind: ErrNetwork, text: fmt.Sprintf("%s: status %d%s", u.Host, s, text),
			retry: true, wait: wait}
	case !own && (s == http.StatusUnauthorized || s == http.StatusForbidden): // a signature that has run out
		return &failure{kind: ErrNetwork, text: fmt.Sprintf("%s: status %d", u.Host, s),
			retry: true}
	case code == "GatedRepo":
		return &failure{kind: errGated, text: text}
	case code == "RevisionNotFound":
		return &failure{kind: errNoRevision, text: text}
	case code == "EntryNotFound":
		return &failure{kind: errNoEntry, text: text}
	case s == http.StatusUnauthorized && h.token != "" && code != "RepoNotFound":
		return &failure{kind: errToken, text: text}
	case code == "RepoNotFound" || s == http.StatusNotFound || s == http.StatusUnauthorized:
		return &failure{kind: errNoRepo, text: text}
	case s == http.StatusForbidden:
		return &failure{kind: errGated, text: text}
	default:
		return permanent(ErrServer, "%s: status %d%s", u.Host, s, text)
	}
}

// Refusals of a hub, which explain puts into words.
var (
	errGated      = errors.New("gated")
	errNoRepo     = errors.New("no repository")
	errNoRevision = errors.New("no revision")
	errNoEntry    = errors.New("no entry")
	errToken      = errors.New("token")
)

// retryAfter returns the wait that a server asks for: Retry-After in seconds or as a date, or the
// reset of RateLimit ("api";r=0;t=12).
func retryAfter(header http.Header, now time.Time) time.Duration {
	if v := header.Get("Retry-After"); v != "" {
		if s, err := strconv.ParseFloat(v, 64); err == nil && s >= 0 && s < 1e8 {
			return time.Duration(s * float64(time.Second))
		}
		if at, err := http.ParseTime(v); err == nil {
			return max(0, at.Sub(now))
		}
	}
	for _, part := range strings.Split(header.Get("RateLimit"), ";") {
		if s, err := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(part), "t=")); err == nil &&
			strings.Contains(part, "t=") && s >= 0 && s < 1e8 {
			return time.Duration(s) * time.Second
		}
	}
	return 0
}

// json reads one page of a list into v, and returns its length in bytes and the URL of the next
// page, nil for none.
func (h *hub) json(ctx context.Context, u *url.URL, limit int64,
	v any) (n int64, next *url.URL, err error) {
	err = h.persist(ctx, func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, listTime)
		defer cancel()
		r, err := h.get(ctx, u, http.Header{"Accept": {"application/json"}})
		if err != nil {
			return false, err
		}
		defer r.close()
		if r.StatusCode != http.StatusOK {
			return false, permanent(ErrServer, "%s: status %d", u.Host, r.StatusCode)
		}
		raw, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
		switch {
		case err != nil:
			return false, transient("%s: the list of files was cut off", u.Host)
		case int64(len(raw)) > limit:
			return false, permanent(ErrServer,
				"%s: the list of files is longer than %d bytes: is HF_ENDPOINT a hub?", u.Host,
				maxList)
		case json.Unmarshal(raw, v) != nil:
			return false, permanent(ErrServer,
				"%s: does not answer as a hub does: is HF_ENDPOINT right?", u.Host)
		}
		n = int64(len(raw))
		next, err = h.next(u, r.Header.Values("Link"))
		return false, err
	})
	return n, next, err
}

// next returns the URL of the next page (Link: <...>; rel="next"), which must be the endpoint's.
func (h *hub) next(u *url.URL, links []string) (*url.URL, error) {
	for _, link := range strings.Split(strings.Join(links, ","), ",") {
		address, attributes, ok := strings.Cut(link, ";")
		if !ok || !strings.Contains(attributes, `rel="next"`) {
			continue
		}
		to, err := u.Parse(strings.Trim(strings.TrimSpace(address), "<>"))
		if err != nil || !sameOrigin(to, h.base) || to.User != nil {
			return nil, permanent(ErrServer,
				"%s: the next page of the list of files is elsewhere: refused", u.Host)
		}
		return to, nil
	}
	return nil, nil
}

// plainEtag returns an ETag without W/ and quotes.
func plainEtag(v string) string { return strings.Trim(strings.TrimPrefix(v, "W/"), `"`) }

// clean returns a server's text for a message: short, one line, without the token.
func (h *hub) clean(text string) string {
	if h.token != "" {
		text = strings.ReplaceAll(text, h.token, "[token]")
	}
	return show(text)
}

// show returns text from outside for a message: printable, one line, at most 200 characters.
func show(text string) string {
	text = strings.Join(strings.FieldsFunc(text,
		func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	if r := []rune(text); len(r) > 200 {
		text = string(r[:200]) + "..."
	}
	return text
}
