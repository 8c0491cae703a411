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

// Bounds of what a hub may send.
const (
	maxList      = 64 << 20 // bytes of a list of files, all pages together
	maxPages     = 1000     // of a list of files
	maxRedirects = 10
	maxMessage   = 64 << 10         // bytes of an error's body
	maxWait      = 10 * time.Minute // that a hub may ask for before the next try
	listTime     = 2 * time.Minute  // of one request for a list
)

// hub asks one endpoint. The token goes to the endpoint's own origin (scheme, host and port)
// and to no other. No error shows the token, or the query of an address: a content delivery
// network is addressed with signatures in it.
type hub struct {
	base    *url.URL
	http    *http.Client
	token   string
	timeout time.Duration
	retries int
	pause   time.Duration
	say     func(format string, args ...any)

	answered bool // once: until then there may be no network, and few tries show that
}

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

// checkEndpoint never shows user information, which may be a secret.
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

func loopback(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// address is a URL at the endpoint; each of parts is one segment of its path, or several.
func (h *hub) address(path, query string) *url.URL {
	u := *h.base
	u.RawPath = strings.TrimRight(u.EscapedPath(), "/") + path
	u.Path, _ = url.PathUnescape(u.RawPath) // escaped by us
	u.RawQuery = query
	return &u
}

// failure is why one try has failed.
type failure struct {
	kind  error // a sentinel of the package
	text  string
	again bool          // another try may help
	wait  time.Duration // before it, as the server asks
}

func (f *failure) Error() string        { return "pull: " + f.text }
func (f *failure) Is(target error) bool { return target == f.kind }

func broken(kind error, format string, args ...any) *failure {
	return &failure{kind: kind, text: fmt.Sprintf(format, args...)}
}

func transient(format string, args ...any) *failure {
	return &failure{kind: ErrNetwork, text: fmt.Sprintf(format, args...), again: true}
}

// persist calls try until it succeeds, fails for good, or has failed retries times in a row
// without progress.
func (h *hub) persist(ctx context.Context, try func() (progress bool, err error)) error {
	for n := 1; ; n++ {
		progress, err := try()
		var f *failure
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.As(err, &f) || !f.again:
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

// backoff doubles from first to a minute, less up to a half by chance.
func backoff(first time.Duration, n int) time.Duration {
	d := min(first<<min(n-1, 10), time.Minute)
	return d - time.Duration(rand.Int64N(int64(d)/2+1))
}

// reply is an answer of status 200, 206 or 416, with what the hub itself has said about the
// file on the way to it.
type reply struct {
	*http.Response
	commit, etag string // X-Repo-Commit, X-Linked-Etag; "" where the hub has not said
	own          bool   // it is from the endpoint itself, not from where it has redirected to
	stop         func()
}

// get asks for u and follows redirects. header is sent to every host, the token to the
// endpoint alone. The caller closes the reply.
func (h *hub) get(ctx context.Context, u *url.URL, header http.Header) (*reply, error) {
	r := &reply{}
	seen := map[string]bool{}
	for hop := 0; ; hop++ {
		if hop > maxRedirects || seen[u.String()] {
			return nil, broken(ErrServer,
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
			return nil, broken(ErrServer, "%s: an address that cannot be asked", u.Host)
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
			return nil, h.unreached(ctx, u, err)
		}
		h.answered = true
		resp.Body = &watched{resp.Body, silence, h.timeout}
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
			err := h.refused(resp, u)
			resp.Body.Close()
			r.stop()
			return nil, err
		}
	}
}

func (r *reply) close() {
	r.Body.Close()
	r.stop()
}

// follow is where a redirect leads: by https, or by http from http.
func (h *hub) follow(from *url.URL, location string) (*url.URL, error) {
	to, err := from.Parse(location)
	switch {
	case location == "" || err != nil || to.Host == "" &&
		(to.Scheme == "http" || to.Scheme == "https"):
		return nil, broken(ErrServer, "%s: redirects to nowhere", from.Host)
	case to.Scheme != "https" && to.Scheme != "http":
		return nil, broken(ErrServer, "%s: redirects to %s: refused: only https is followed",
			from.Host, h.clean(to.Scheme+"://"))
	case to.Scheme == "http" && from.Scheme == "https":
		return nil, broken(ErrServer, "%s: redirects from https to http://%s: refused", from.Host,
			h.clean(to.Host))
	case to.User != nil:
		return nil, broken(ErrServer,
			"%s: redirects to an address with a user or password in it: refused", from.Host)
	}
	to.Fragment = ""
	return to, nil
}

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

// errSilent ends a request that has brought nothing for a time.
var errSilent = errors.New("silent")

// watched is a body that must bring something within the limit.
type watched struct {
	io.ReadCloser
	silence *time.Timer
	limit   time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if n > 0 {
		w.silence.Reset(w.limit)
	}
	return n, err
}

// unreached is the error of a connection, without the address, whose query may be a secret.
func (h *hub) unreached(ctx context.Context, u *url.URL, err error) error {
	var certificate *tls.CertificateVerificationError
	var in *url.Error
	if errors.As(err, &in) {
		err = in.Err
	}
	switch {
	case errors.Is(context.Cause(ctx), errSilent):
		return transient("%s: nothing has come for %v", u.Host, h.timeout)
	case errors.As(err, &certificate):
		return broken(ErrNetwork, "%s: its certificate is not to be trusted: %s", u.Host,
			h.clean(err.Error()))
	}
	return transient("%s: %s", u.Host, h.clean(err.Error()))
}

// refused is the error of an answer that is none of what was asked for.
func (h *hub) refused(resp *http.Response, u *url.URL) error {
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
			again: true, wait: wait}
	case !own && (s == http.StatusUnauthorized || s == http.StatusForbidden): // a signature that has run out
		return &failure{kind: ErrNetwork, text: fmt.Sprintf("%s: status %d", u.Host, s),
			again: true}
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
		return broken(ErrServer, "%s: status %d%s", u.Host, s, text)
	}
}

// What a hub refuses, before it is said in words.
var (
	errGated      = errors.New("gated")
	errNoRepo     = errors.New("no repository")
	errNoRevision = errors.New("no revision")
	errNoEntry    = errors.New("no entry")
	errToken      = errors.New("token")
)

// retryAfter is how long a server asks to wait: Retry-After in seconds or as a date, or the
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

// json reads one page of a list into v and returns its length and the address of the next
// page, nil where there is none.
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
			return false, broken(ErrServer, "%s: status %d", u.Host, r.StatusCode)
		}
		raw, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
		switch {
		case err != nil:
			return false, transient("%s: the list of files was cut off", u.Host)
		case int64(len(raw)) > limit:
			return false, broken(ErrServer,
				"%s: the list of files is longer than %d bytes: is HF_ENDPOINT a hub?", u.Host,
				maxList)
		case json.Unmarshal(raw, v) != nil:
			return false, broken(ErrServer,
				"%s: does not answer as a hub does: is HF_ENDPOINT right?", u.Host)
		}
		n = int64(len(raw))
		next, err = h.next(u, r.Header.Values("Link"))
		return false, err
	})
	return n, next, err
}

// next is the address of the next page: Link: <...>; rel="next". It must be the endpoint's.
func (h *hub) next(u *url.URL, links []string) (*url.URL, error) {
	for _, link := range strings.Split(strings.Join(links, ","), ",") {
		address, attributes, ok := strings.Cut(link, ";")
		if !ok || !strings.Contains(attributes, `rel="next"`) {
			continue
		}
		to, err := u.Parse(strings.Trim(strings.TrimSpace(address), "<>"))
		if err != nil || !sameOrigin(to, h.base) || to.User != nil {
			return nil, broken(ErrServer,
				"%s: the next page of the list of files is elsewhere: refused", u.Host)
		}
		return to, nil
	}
	return nil, nil
}

// plainEtag is an ETag without W/ and quotes.
func plainEtag(v string) string { return strings.Trim(strings.TrimPrefix(v, "W/"), `"`) }

// clean is text of a server as it may be shown: short, one line, without the token.
func (h *hub) clean(text string) string {
	if h.token != "" {
		text = strings.ReplaceAll(text, h.token, "[token]")
	}
	return show(text)
}

// show is text from elsewhere as it may be shown.
func show(text string) string {
	text = strings.Join(strings.FieldsFunc(text,
		func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	if r := []rune(text); len(r) > 200 {
		text = string(r[:200]) + "..."
	}
	return text
}
