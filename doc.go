// Package gad is the root of the module and holds no code: the program is
// cmd/gad, the folders beside it are the words of the pipeline, and
// layout_test.go says what may import what.
package gad
