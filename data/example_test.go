package data_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"gad/data"
)

// A run asks the order for rows, reads them, and keeps the order's state in its
// checkpoint.
func Example() {
	set, err := data.Open("../testdata/data/saved", data.DefaultColumns())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Close()

	order := data.NewOrder(set.Len(), 42, 0, 1)
	for _, i := range order.Next(2) {
		row, err := set.Row(i)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: %q -> %q\n", row.ID, row.Messages[len(row.Messages)-1].Content, row.Teacher)
	}
	fmt.Printf("%+v\n", order.State())
	// Output:
	// row-4: "Write a poem.\n\n1. short\n2. good" -> "Roses are red.\r\nViolets too."
	// row-3: "naïve café: ½ ≠ ⅓ — 😀👩\u200d👩\u200d👧" -> "Zażółć gęślą jaźń\nline two\ttabbed \"quoted\" \\ back"
	// {Seed:42 Epoch:0 Offset:2 Rank:0 World:1}
}

// Rows in ShareGPT's form, from two files of different formats, are one set; a row
// that training would refuse is an error.
func ExampleOpenFiles() {
	set, err := data.OpenFiles(
		[]string{"../testdata/rows/sharegpt.parquet", "../testdata/rows/rows.csv"}, data.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Close()
	row, err := set.Example(13, nil, data.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(set.Len(), row.Messages[0].Content, row.Messages[1].Content, row.Teacher)
	fmt.Println(set.Notes())
	// Output:
	// 24 Answer in one word. Capital of France? Paris
	// [../testdata/rows/sharegpt.parquet: read as sharegpt: prompt from column "conversations", teacher's answer is its last turn of gpt (data.format=sharegpt)]
}

// What is wrong with rows, before a run trains on them.
func ExampleValidate() {
	set, err := data.OpenFiles([]string{"../testdata/letters/train.jsonl"}, data.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Close()
	r, err := data.Validate(set, nil, data.Limits{MaxPrompt: 1000, MaxResponse: 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.OK(), r.Rows, "rows,", r.CutAnswers, "answers longer than 20", r.Unit)
	// Output:
	// true 50 rows, 0 answers longer than 20 characters
}

// A set is what its files are, whatever their format.
func ExampleInspect() {
	set, err := data.OpenFiles([]string{"../testdata/rows/sharegpt.parquet"}, data.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Close()
	info := data.Inspect(set, 0)
	fmt.Println(info.Format, info.Rows, info.Teacher, info.Row.Teacher)
	// Output:
	// parquet 12 true 4
}

// Rows go from one format to another, by the name of the file.
func ExampleConvert() {
	dir, err := os.MkdirTemp("", "convert")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "rows.parquet")
	set, err := data.OpenFiles([]string{"../testdata/letters/test.jsonl"}, data.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Close()
	if err := data.Convert(set, out); err != nil {
		fmt.Println(err)
		return
	}
	again, err := data.Open(out, data.DefaultColumns())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer again.Close()
	fmt.Println(again.Len() == set.Len())
	// Output:
	// true
}

// A killed run goes on with the rows behind those that it has had.
func ExampleOrder_Restore() {
	order := data.NewOrder(6, 42, 0, 1)
	order.Next(2)
	kept := order.State() // in the checkpoint
	next := order.Next(3)

	again := data.NewOrder(6, 42, 0, 1)
	err := again.Restore(kept)
	fmt.Println(slices.Equal(again.Next(3), next), err)
	// Output:
	// true <nil>
}

// Calls of tools have one form, however they were written.
func ExampleReadCalls() {
	calls, err := data.ReadCalls([]byte(`[{"name": "add", "arguments": {"a": 4, "b": 7}}]`))
	fmt.Println(calls, err)
	// Output:
	// [{"function":{"name":"add","arguments":{"a":4,"b":7}}}] <nil>
}
