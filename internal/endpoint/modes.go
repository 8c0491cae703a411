package endpoint

import "runtime"

// secretModes is true where a file's mode keeps other users from reading it: not on Windows.
const secretModes = runtime.GOOS != "windows"
