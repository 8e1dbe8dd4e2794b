// Command clients does with the official Go libraries what the tests tell it: the first
// argument names the library, the second is the address of the server. It reads a task a
// line and says in a line of JSON what came of it, as ../tasks.mjs does.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
)

// task is what a test asks for.
type task struct {
	Task     string         `json:"task"`
	Secret   string         `json:"secret"`
	Model    string         `json:"model"`
	Prompt   string         `json:"prompt"`
	Tokens   int64          `json:"tokens"`
	Streams  bool           `json:"streams"`
	Tools    bool           `json:"tools"`
	Thinking bool           `json:"thinking"`
	Schema   map[string]any `json:"schema"`
}

// library does tasks with a client that it makes anew for each, for the key may be another.
type library interface {
	answer(ctx context.Context, t task) (string, error)
	failure(error) string
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 {
		return fmt.Errorf("usage: %s openai|anthropic URL", os.Args[0])
	}
	url := os.Args[2]
	l := map[string]library{"openai": openaiLibrary{url}, "anthropic": anthropicLibrary{url}}[os.Args[1]]
	if l == nil {
		return fmt.Errorf("unknown library %q", os.Args[1])
	}
	tasks, results := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for tasks.More() {
		var t task
		if err := tasks.Decode(&t); err != nil {
			return err
		}
		out, err := l.answer(context.Background(), t)
		if err != nil {
			out = "error " + l.failure(err)
		}
		if err := results.Encode(out); err != nil {
			return err
		}
	}
	return nil
}
