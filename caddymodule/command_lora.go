package caddymodule

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
)

var loraCommand = subcommand{
	use:   "lora <model> <id>=<scale>... " + adminUsage,
	short: "Sets LoRA adapters on all nodes of a model",
	long: `
Sets the scales of LoRA adapters, by the ids with which the servers loaded them
('--lora'), on all nodes of a model, and prints what each made of it. A node that
is down or comes later gets the same before it gets a request.

Exit codes:
  0  they are set on all nodes of the model
  1  nothing serves the model, or the admin API cannot be reached
  3  they are not set on all; the table says why
`,
	args: func(_ *cobra.Command, args []string) error {
		if len(args) < 2 {
			return fmt.Errorf("want a model and at least one ID=SCALE")
		}
		_, err := adaptersOf(args[1:])
		return err
	},
	flags: adminAndJSON,
	run:   cmdLora,
}

// adaptersOf reads ID=SCALE.
func adaptersOf(args []string) ([]adapter, error) {
	var list []adapter
	for _, arg := range args {
		id, scale, ok := strings.Cut(arg, "=")
		n, err1 := strconv.Atoi(id)
		s, err2 := strconv.ParseFloat(scale, 64)
		if !ok || err1 != nil || err2 != nil || n < 0 || math.IsNaN(s) || math.IsInf(s, 0) {
			return nil, fmt.Errorf("%q: want ID=SCALE, as in 0=0.5", arg)
		}
		list = append(list, adapter{ID: n, Scale: s})
	}
	return list, nil
}

type loraResults struct {
	Results []loraResult `json:"results"`
}

func cmdLora(fl caddycmd.Flags) (int, error) {
	list, err := adaptersOf(fl.Args()[1:])
	if err != nil {
		return exitOf(err), err
	}
	var got loraResults
	raw, err := askAdmin(fl, http.MethodPost, "/fleet/control/lora", loraWish{Model: fl.Arg(0), Adapters: list}, &got)
	if err == nil {
		err = show(fl, raw, got.write)
	}
	if err != nil {
		return exitOf(err), err
	}
	for _, r := range got.Results {
		if !r.OK {
			return exitRefused, nil
		}
	}
	return 0, nil
}

func (l loraResults) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tMODEL\tRESULT")
	for _, r := range l.Results {
		result := "set"
		if !r.OK {
			result = printable(r.Error)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", printable(r.Node), printable(r.Model), result)
	}
	return t.Flush()
}
