package device_test

import (
	"fmt"

	"gad/device"
	"gad/model"
)

// Open a device, use it, close it.
func Example() {
	be, err := device.Open(device.Options{Name: device.CPU, Precision: device.F32, Threads: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer be.Close()
	m, err := model.Load(be, "../testdata/model/qwen2_tied", model.Options{Kind: model.LM})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	fmt.Println(m.Config().Architecture, m.Config().ParamCount(model.LM), "parameters")
	// Output:
	// Qwen2 18752 parameters
}

// A plan of memory for a GPU needs no GPU.
func ExampleOptions_Footprint() {
	c, err := model.ReadConfig("../testdata/model/qwen2_tied")
	if err != nil {
		fmt.Println(err)
		return
	}
	plan := c.Plan(device.Options{Name: device.CUDA}.Footprint(),
		model.PlanOptions{Kind: model.LM, Trainable: true, Tokens: 1024})
	fmt.Println("weights", plan.Weights, "bytes, with gradients and activations more:",
		plan.Total() > plan.Weights)
	// Output:
	// weights 77312 bytes, with gradients and activations more: true
}
