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
	// X
}
