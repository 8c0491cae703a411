package data_test

import (
	"fmt"

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
