package pull

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/apps/pull/hubtest"
	"gad/internal/vfs"
)

// pulled runs gad pull on a name with the variables of an environment, and no retry.
func pulled(t *testing.T, text string, vars map[string]string) error {
	t.Helper()
	env, err := FromEnvironment(vfs.OS, func(name string) string { return vars[name] })
	if err != nil {
		return err
	}
	n, err := ParseName(text, false)
	if err != nil {
		return err
	}
	_, err = run(Options{Environment: env, Name: n, Timeout: patience})
	return err
}

// What the environment or the hub refuses: one line, its kind, and the way out.
func TestRefused(t *testing.T) {
	repo := student()
	gated := &hubtest.Repo{Files: repo.Files, Gated: true}
	s := start(t, map[string]*hubtest.Repo{"models/org/student": repo, "models/org/gated": gated})
	cache := filepath.Join(t.TempDir(), "hub")
	vars := func(name, value string) map[string]string {
		m := map[string]string{"HF_ENDPOINT": s.URL, "HF_HUB_CACHE": cache, "HF_HOME": "/nowhere"}
		if name != "" {
			m[name] = value
		}
		return m
	}
	for _, c := range []struct {
		set, name string
		kind      error // nil: the files are of no use, or are not given
		want      string
	}{
		{"", "org/gated", nil, `pull: org/gated: is gated: accept its licence on ` + s.URL + `/org/gated, create a token on ` + s.URL + `/settings/tokens, and set HF_TOKEN to it`},
		{"HF_ENDPOINT=ftp://hub", "a/b", ErrName, `pull: HF_ENDPOINT "ftp://hub": must begin with https:// or http://`},
		{"HF_ENDPOINT=http://hub", "a/b", ErrName, `pull: HF_ENDPOINT "http://hub": http:// to another machine can be read and changed on its way: use https://, or allow it with --insecure-http`},
		{"HF_ENDPOINT=https://me:secret@hub", "a/b", ErrName, `pull: HF_ENDPOINT cannot be read, or has a user or password in it: give an address such as https://huggingface.co, and a token in HF_TOKEN`},
		{"HF_ENDPOINT=http://127.0.0.1:1", "a/b", ErrNetwork, `pull: 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused (1 try): what has come is kept: run the same command again later`},
		{"HF_TOKEN=hf_x y", "a/b", ErrName, `pull: HF_TOKEN has spaces, line ends or other characters that no token has`},
		{"HF_TOKEN=hf_wrong", "org/student", nil, `pull: org/student: the hub refuses the token of HF_TOKEN (the hub says: Invalid credentials in Authorization header): create another on ` + s.URL + `/settings/tokens, or set HF_HUB_DISABLE_IMPLICIT_TOKEN=1 for none`},
	} {
		name, value, _ := strings.Cut(c.set, "=")
		err := pulled(t, c.name, vars(name, value))
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %v\nwant %s", c.set, err, c.want)
		}
		for _, kind := range []error{ErrName, ErrNetwork} {
			if errors.Is(err, kind) != (kind == c.kind) {
				t.Errorf("%s: is of another kind: %v", c.set, err)
			}
		}
	}
	// A token without access, and one with it.
	s.Token = "hf_0123456789secret"
	s.SetMisbehave(func(c hubtest.Call, w http.ResponseWriter, _ *http.Request) bool {
		if c.Kind == "file" {
			hubtest.Fail(w, 403, "GatedRepo",
				"Access is restricted and "+s.Token+" is not in the authorized list.")
		}
		return c.Kind == "file"
	})
	if err := pulled(t, "org/gated", vars("HF_TOKEN", s.Token)); err == nil || err.Error() != `pull: org/gated: is gated, and the token has no access (the hub says: Access is restricted and [token] is not in the authorized list.): accept its licence on `+s.URL+`/org/gated with the token's account, and wait until access is granted` {
		t.Error(err)
	}
	s.SetMisbehave(nil)
	if err := pulled(t, "org/gated", vars("HF_TOKEN", s.Token)); err != nil {
		t.Fatal(err)
	}
	found := 0
	err := filepath.WalkDir(cache, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		found++
		raw, err := os.ReadFile(path)
		if strings.Contains(string(raw), s.Token) {
			t.Errorf("%s holds the token", path)
		}
		return err
	})
	if err != nil || found < len(fetched) {
		t.Errorf("%d files in the cache, %v", found, err)
	}
}
