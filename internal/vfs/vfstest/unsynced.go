package vfstest

import "gad/internal/vfs"

// Unsynced returns base without its syncs, which make up half of the time of runs of small models.
// Tests of what a loss of power leaves have a CrashFS; a killed process loses nothing without
// syncs.
func Unsynced(base vfs.FS) vfs.FS { return unsynced{base} }

type unsynced struct{ vfs.FS }

func (u unsynced) Create(path string) (vfs.File, error) {
	f, err := u.FS.Create(path)
	return unsyncedFile{f}, err
}

func (u unsynced) OpenAppend(path string) (vfs.File, error) {
	f, err := u.FS.OpenAppend(path)
	return unsyncedFile{f}, err
}

func (u unsynced) SyncDir(string) error { return nil }

type unsyncedFile struct{ vfs.File }

func (unsyncedFile) Sync() error { return nil }
