package endpoint

import "runtime"

// secretModes says that a file's mode keeps others from reading it, which it does not
// on Windows.
const secretModes = runtime.GOOS != "windows"
