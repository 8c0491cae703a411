package pull

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// Name is a repository on a hub, or one file of it: OWNER/NAME[@REVISION][:FILE].
type Name struct {
	Repo     string // OWNER/NAME
	Revision string // branch, tag or commit; "" is main
	// path of a file, or tag of a quantisation such as Q8_0; "": all files that gad reads
	File    string
	Dataset bool // a data set; else a model
}

var (
	// The hub's own rule for the two halves of a name.
	repoName = regexp.MustCompile(`^[A-Za-z0-9_]([\w.-]{0,94}[A-Za-z0-9_])?/[A-Za-z0-9_]([\w.-]{0,94}[A-Za-z0-9_])?$`)
	revision = regexp.MustCompile(`^[\w.-]+(/[\w.-]+)*$`)
	commitID = regexp.MustCompile(`^[0-9a-f]{40}$`)
	quantTag = regexp.MustCompile(`^\w+$`)
)

// ParseName reads OWNER/NAME[@REVISION][:FILE]. Its errors wrap ErrName.
func ParseName(text string, dataset bool) (Name, error) {
	rest, file, named := strings.Cut(text, ":")
	repo, rev, at := strings.Cut(rest, "@")
	n := Name{Repo: repo, Revision: rev, File: file, Dataset: dataset}
	switch {
	case strings.HasPrefix(file, "//"):
		return n, fmt.Errorf("%w: %q is an address: give OWNER/NAME alone, such as Qwen/Qwen2.5-0.5B-Instruct; another hub is named by HF_ENDPOINT", ErrName, text)
	case !repoName.MatchString(repo) || strings.Contains(repo, "--") ||
		strings.Contains(repo, "..") || strings.HasSuffix(repo, ".git"):
		return n,
			fmt.Errorf(
				"%w: %q is no name on a hub: give OWNER/NAME, such as Qwen/Qwen2.5-0.5B-Instruct",
				ErrName, text)
	case at && !validRevision(rev):
		return n,
			fmt.Errorf("%w: %q: revision %q: must be a branch, a tag or a commit, such as main",
				ErrName, text, rev)
	case named && !safePath(file):
		return n, fmt.Errorf("%w: %q: file %q: must be a path inside the repository, or the tag of a quantisation such as Q8_0", ErrName, text, file)
	}
	return n, nil
}

// validRevision reports whether a text can be a branch, a tag or a commit.
func validRevision(rev string) bool {
	return len(rev) <= 200 && revision.MatchString(rev) && !strings.Contains(rev, "..") &&
		!strings.HasSuffix(rev, ".lock")
}

// String returns the name as ParseName reads it.
func (n Name) String() string {
	s := n.Repo
	if n.Revision != "" {
		s += "@" + n.Revision
	}
	if n.File != "" {
		s += ":" + n.File
	}
	return s
}

// Command returns the command line that fetches n.
func (n Name) Command() string {
	if n.Dataset {
		return "gad pull --dataset " + n.String()
	}
	return "gad pull " + n.String()
}

// ref returns the revision, main by default.
func (n Name) ref() string {
	if n.Revision == "" {
		return "main"
	}
	return n.Revision
}

// kind returns the hub's word for models or data sets, in URLs and in the cache.
func (n Name) kind() string {
	if n.Dataset {
		return "datasets"
	}
	return "models"
}

// folder returns the name of the repository's folder in the cache.
func (n Name) folder() string { return n.kind() + "--" + strings.ReplaceAll(n.Repo, "/", "--") }

// safePath reports whether a path, which may come from a server, names a file below a folder on
// every system: no .., not absolute, no drive or stream, no control characters.
func safePath(p string) bool {
	if len(p) > 1000 || p == "." || !fs.ValidPath(p) ||
		strings.ContainsFunc(p,
			func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' || r == ':' }) {
		return false
	}
	for _, part := range strings.Split(p, "/") {
		if len(part) > 255 || strings.HasSuffix(part, ".") || strings.HasSuffix(part, " ") {
			return false
		}
	}
	return path.Clean(p) == p
}
