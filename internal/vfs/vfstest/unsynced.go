package vfstest

import "gad/internal/vfs"

// NoSync returns base without its syncs, which take half of the time of runs of small models. Tests
// of a loss of power use a CrashFS; a killed process loses nothing without syncs.
func NoSync(base vfs.FS) vfs.FS { return noSync{base} }

type noSync struct{ vfs.FS }

func (u noSync) Create(path string) (vfs.File, error) {
	f, err := u.FS.Create(path)
	return noSyncFile{f}, err
}

func (u noSync) OpenAppend(path string) (vfs.File, error) {
	f, err := u.FS.OpenAppend(path)
	return noSyncFile{f}, err
}

func (u noSync) SyncDir(string) error { return nil }

type noSyncFile struct{ vfs.File }

func (noSyncFile) Sync() error { return nil }
