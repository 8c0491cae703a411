package pull

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gad/internal/vfs"
)

// Environment is the configuration that programs of a hub share by environment variables.
type Environment struct {
	Endpoint  string // HF_ENDPOINT, without a slash at its end
	Cache     string // folder of the cache: HF_HUB_CACHE, else hub below HF_HOME
	Offline   bool   // HF_HUB_OFFLINE: no connection may be opened
	Token     string // HF_TOKEN, else the content of TokenFile; "" is none
	TokenFile string // file of Token; "" for the environment
}

const publicHub = "https://huggingface.co"

// FromEnvironment reads the variables as the hub's own client does. A missing token file means no
// token; an unreadable one is an error, which never shows its content.
func FromEnvironment(fsys vfs.FS, getenv func(string) string) (e Environment, err error) {
	first := func(names ...string) string {
		for _, name := range names {
			if v := getenv(name); v != "" {
				return v
			}
		}
		return ""
	}
	if e.Endpoint = strings.TrimRight(first("HF_ENDPOINT"), "/"); e.Endpoint == "" {
		e.Endpoint = publicHub
	}
	e.Offline = isTrue(first("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
	home := expand(first("HF_HOME"), getenv)
	if home == "" {
		if cache := first("XDG_CACHE_HOME"); cache != "" {
			home = filepath.Join(cache, "huggingface")
		} else if user, err := os.UserHomeDir(); err == nil {
			home = filepath.Join(user, ".cache", "huggingface")
		}
	}
	if e.Cache = expand(first("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"), getenv); e.Cache == "" &&
		home != "" {
		e.Cache = filepath.Join(home, "hub")
	}
	if e.Cache == "" {
		return e,
			fmt.Errorf("%w: there is no home folder for the cache: set HF_HUB_CACHE to a folder",
				ErrName)
	}
	if e.Cache, err = filepath.Abs(e.Cache); err != nil {
		return e, fmt.Errorf("pull: %w", err)
	}
	if isTrue(first("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
		return e, nil
	}
	if e.Token = strings.TrimSpace(first("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")); e.Token != "" {
		return e, checkToken(e.Token, "HF_TOKEN")
	}
	file := expand(first("HF_TOKEN_PATH"), getenv)
	if file == "" && home != "" {
		file = filepath.Join(home, "token")
	}
	if info, err := fsys.Stat(file); err != nil || !info.Mode().IsRegular() ||
		info.Size() > 16<<10 {
		if errors.Is(err, fs.ErrNotExist) || file == "" {
			return e, nil
		}
		return e,
			fmt.Errorf(
				"%w: token file %s: is no readable file of a token: remove it, or set HF_TOKEN",
				ErrName, file)
	}
	text, err := fsys.ReadFile(file)
	if err != nil {
		return e,
			fmt.Errorf("%w: token file %s: cannot be read: change its permissions, or set HF_TOKEN",
				ErrName, file)
	}
	e.Token, e.TokenFile = strings.TrimSpace(string(text)), file
	return e, checkToken(e.Token, "token file "+file)
}

// checkToken refuses a token with characters that a header cannot have. It does not show the token.
func checkToken(token, where string) error {
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("%w: %s has spaces, line ends or other characters that no token has",
			ErrName, where)
	}
	return nil
}

// isTrue reports whether a variable's value means true.
func isTrue(v string) bool {
	switch strings.ToUpper(v) {
	case "1", "ON", "YES", "TRUE":
		return true
	}
	return false
}

// expand returns a path with ~ at the start and variables replaced, as the hub's own client does.
func expand(path string, getenv func(string) string) string {
	if path == "~" || strings.HasPrefix(path, "~/") {
		if user, err := os.UserHomeDir(); err == nil {
			path = user + path[1:]
		}
	}
	return os.Expand(path, getenv)
}

// The layout of a repository in the cache:
//
//	models--OWNER--NAME/refs/main                 the commit that main was when it was fetched
//	models--OWNER--NAME/snapshots/COMMIT/FILE     a link to ../../blobs/ETAG
//	models--OWNER--NAME/blobs/ETAG                content, by SHA-256 (large) or git's SHA-1 (small)
//	models--OWNER--NAME/blobs/ETAG.incomplete     what has come of it
//	.locks/models--OWNER--NAME/ETAG.lock          held while ETAG is fetched
type repoDir struct {
	fsys  vfs.FS
	cache string
	name  Name
}

func (r repoDir) path(parts ...string) string {
	return filepath.Join(append([]string{r.cache, r.name.folder()}, parts...)...)
}
func (r repoDir) blob(f File) string            { return r.path("blobs", f.etag()) }
func (r repoDir) partial(f File) string         { return r.blob(f) + ".incomplete" }
func (r repoDir) snapshot(commit string) string { return r.path("snapshots", commit) }
func (r repoDir) lockFile(what string) string {
	return filepath.Join(r.cache, ".locks", r.name.folder(), what+".lock")
}
func (r repoDir) ref() string { return r.path("refs", filepath.FromSlash(r.name.ref())) }

// commit returns the commit that the cache has for the name's revision; "" for none.
func (r repoDir) commit() string {
	if commitID.MatchString(r.name.ref()) {
		return r.name.ref()
	}
	if info, err := r.fsys.Stat(r.ref()); err != nil || !info.Mode().IsRegular() ||
		info.Size() > 1000 {
		return ""
	}
	text, err := r.fsys.ReadFile(r.ref())
	if commit := strings.TrimSpace(string(text)); err == nil && commitID.MatchString(commit) {
		return commit
	}
	return ""
}

// files returns a snapshot's files whose content is in the cache, by their paths in the repository.
func (r repoDir) files(commit string) (list []File, err error) {
	var walk func(dir string, depth int) error
	walk = func(dir string, depth int) error {
		entries, err := r.fsys.ReadDir(filepath.Join(r.snapshot(commit), filepath.FromSlash(dir)))
		if err != nil || depth > 20 {
			return err
		}
		for _, e := range entries {
			name := e.Name()
			if dir != "" {
				name = dir + "/" + name
			}
			if e.IsDir() {
				if err := walk(name, depth+1); err != nil {
					return err
				}
				continue
			}
			if info, err := r.fsys.Stat(
				filepath.Join(r.snapshot(commit), filepath.FromSlash(name))); err == nil &&
				info.Mode().IsRegular() {
				list = append(list, File{Path: name, Size: info.Size()})
			}
		}
		return nil
	}
	err = walk("", 0)
	return list, err
}

// Find returns the path of n in the cache: the snapshot's folder, or the file that n names. It
// opens no connection. The error wraps ErrAbsent where n is not, or only partly, in the cache.
func Find(fsys vfs.FS, cache string, n Name) (string, error) {
	r := repoDir{vfs.OrDisk(fsys), cache, n}
	commit := r.commit()
	if commit == "" {
		return "", fmt.Errorf("%w: %s: the cache %s does not have it", ErrAbsent, n, cache)
	}
	files, err := r.files(commit)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(files) == 0 {
		return "", fmt.Errorf("%w: %s: the cache %s does not have it", ErrAbsent, n, cache)
	}
	if err != nil {
		return "", fmt.Errorf("pull: %w", err)
	}
	chosen, err := choose(n, files,
		func(f File) ([]byte, error) { return r.read(commit, f, maxIndex) })
	switch {
	case errors.Is(err, ErrName):
		return "", err
	case err != nil:
		return "", fmt.Errorf("%w: %s: the cache %s has only a part of it: %s", ErrAbsent, n, cache,
			strings.TrimPrefix(err.Error(), "pull: "+n.String()+": "))
	case n.File != "" && len(chosen) == 1:
		return filepath.Join(r.snapshot(commit), filepath.FromSlash(chosen[0].Path)), nil
	case n.File != "":
		return filepath.Join(r.snapshot(commit), filepath.FromSlash(n.File)), nil // a pattern
	}
	return r.snapshot(commit), nil
}

// read returns the content of a snapshot's file, at most limit bytes of it.
func (r repoDir) read(commit string, f File, limit int64) ([]byte, error) {
	file, err := r.fsys.Open(filepath.Join(r.snapshot(commit), filepath.FromSlash(f.Path)))
	if err != nil {
		return nil, fmt.Errorf("pull: %w", err)
	}
	defer file.Close() // only read from
	text, err := io.ReadAll(io.LimitReader(file, limit))
	if err != nil {
		return nil, fmt.Errorf("pull: %w", err)
	}
	return text, nil
}

// link puts a file of blobs into the snapshot by a relative link, which replaces anything of that
// name. Where the system has no links it moves the file, as the hub's own client does.
func (r repoDir) link(commit string, f File) error {
	at := filepath.Join(r.snapshot(commit), filepath.FromSlash(f.Path))
	dir := filepath.Dir(at)
	if err := vfs.MakeDirs(r.fsys, dir); err != nil {
		return err
	}
	target, err := filepath.Rel(dir, r.blob(f))
	if err != nil {
		return err
	}
	if is, err := r.fsys.Readlink(at); err == nil && is == target {
		return r.fsys.SyncDir(dir) // a process may have been killed before this
	}
	if _, err := r.fsys.Stat(r.blob(f)); errors.Is(err, fs.ErrNotExist) {
		return nil // an earlier call has moved it into the snapshot
	}
	temp := vfs.TempName(at)
	if err := r.fsys.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := r.fsys.Symlink(target, temp); err != nil {
		if isFull(err) {
			return err
		}
		temp = r.blob(f)
	}
	if err := r.fsys.Rename(temp, at); err != nil {
		return err
	}
	return r.fsys.SyncDir(dir)
}

// setRef records the revision's commit.
func (r repoDir) setRef(commit string) error {
	if r.name.ref() == commit {
		return nil
	}
	if err := vfs.MakeDirs(r.fsys, filepath.Dir(r.ref())); err != nil {
		return err
	}
	return vfs.WriteFile(r.fsys, r.ref(), []byte(commit))
}
