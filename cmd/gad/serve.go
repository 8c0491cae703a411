package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gad/apps/pull"
	"gad/apps/serve"
	"gad/apps/session"
	"gad/internal/endpoint"
	"gad/internal/fault"
	"gad/internal/report"
	"gad/model"
)

// keyVariable is the environment variable that holds the key of clients.
const keyVariable = "GAD_API_KEY"

// serveCommand returns the command gad serve.
func (p *program) serveCommand() *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "answer programs that speak OpenAI's HTTP interface: chat, completions, log-likelihoods, tokens",
		Description: "GET /v1/models, /health, /metrics, /tokenizer_info; POST /v1/chat/completions, /v1/completions, /tokenize, /detokenize.\n" +
			"An API key, from the environment variable " + keyVariable + " or --api-key-file, is asked of every client, and is needed to listen elsewhere than on this machine.\n" +
			"Ctrl-C or SIGTERM lets the requests under way end, for --grace seconds.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: modelUsage},
			adapterFlag("model"),
			weightsFlag(),
			&cli.StringFlag{Name: "listen", Value: "127.0.0.1:8000",
				Usage: "address and port; port 0 takes a free one"},
			&cli.StringFlag{Name: "api-key-file",
				Usage: "file with the API key, readable by its owner alone; instead of " +
					keyVariable},
			&cli.StringFlag{Name: "name", DefaultText: "that of the model folder",
				Usage: "name of the model for clients"},
			&cli.StringSliceFlag{Name: "allow-origin", Usage: "origin whose pages in a browser may use the server (CORS), such as http://localhost:3000, or * for all; may be given several times"},
			withLimits(&cli.IntFlag{Name: "slots", Value: 64,
				Usage: "answers that are sampled at the same time"}, intRange(1, 1<<12)),
			withLimits(&cli.IntFlag{Name: "context", DefaultText: "4096, or what the model takes",
				Usage: "longest prompt with its answer, tokens"}, intRange(2, 1<<24)),
			withLimits(&cli.IntFlag{Name: "cache-tokens", DefaultText: "512 per slot, at least two contexts", Usage: "tokens in the cache of keys and values; an answer waits until it has room to its end"}, intRange(2, 1<<30)),
			withLimits(&cli.IntFlag{Name: "max-tokens", Value: 1024,
				Usage: "longest answer to a chat request that gives no limit, tokens"},
				intRange(1, 1<<24)),
			withLimits(&cli.IntFlag{Name: "max-queue", Value: 128,
				Usage: "requests that may wait; more are refused with status 429"},
				intRange(1, 1<<16)),
			oneOf(&cli.StringFlag{Name: "tool-parser", DefaultText: "that of the chat template",
				Usage: "form of the calls of tools in answers: hermes, llama, or none to leave calls in the text"},
				serve.ToolParsers, "hermes, llama or none"),
			&cli.BoolFlag{Name: "no-prefix-cache",
				Usage: "compute every prompt anew, whatever earlier ones have left in the cache"},
			withLimits(&cli.Float64Flag{Name: "grace", Value: 30,
				Usage: "seconds for the requests under way when the server is stopped"},
				floatRange(0, 86400)),
		}, append(chunkFlags(), deviceFlags()...)...),
		Action: func(c *cli.Context) error {
			o, err := serveOptions(c)
			if err != nil {
				return err
			}
			asked, err := chunksOf(c)
			if err != nil {
				return err
			}
			if o.Chunks, err = p.session().AnswerChunks("serve", c.String("model"), asked); err != nil {
				return err
			}
			if o.Chunks.On() && !c.IsSet("max-tokens") {
				o.Answer = 0
			}
			return p.serve(c, o)
		},
	}
}

// serveOptions returns the values of gad serve's flags.
func serveOptions(c *cli.Context) (o serve.Options, err error) {
	if err := errors.Join(noArguments(c), need(c, "model")); err != nil {
		return o, err
	}
	o.Slots, o.Context, o.Cache, o.Answer, o.Queue =
		c.Int("slots"), c.Int("context"), c.Int("cache-tokens"), c.Int("max-tokens"),
		c.Int("max-queue")
	for _, origin := range c.StringSlice("allow-origin") {
		if !serve.Origin(origin) {
			return o, usage("serve: --allow-origin %q: must be a scheme and a host, such as http://localhost:3000, without a path; or *", origin)
		}
		o.Origins = append(o.Origins, origin)
	}
	o.Forget, o.ToolParser = c.Bool("no-prefix-cache"), c.String("tool-parser")
	o.Grace = time.Duration(c.Float64("grace") * float64(time.Second))
	if o.Name = c.String("name"); o.Name == "" {
		dir, err := filepath.Abs(c.String("model"))
		if err != nil {
			return o, err
		}
		o.Name = strings.TrimSuffix(pull.ModelName(dir), ".gguf")
	}
	address := c.String("listen")
	if o.Loopback, err = serve.Loopback(address); err != nil {
		return o, usage("serve: --listen %s: must be an address and a port, such as 127.0.0.1:8000",
			address)
	}
	if o.Key, err = apiKey(c); err != nil {
		return o, err
	}
	if !o.Loopback && o.Key == "" {
		return o, usage("serve: --listen %s: other machines reach this address: set an API key in %s or --api-key-file", address, keyVariable)
	}
	return o, nil
}

// leastKey is the length of the shortest API key.
const leastKey = 16

// apiKey returns the key of clients; "": none.
func apiKey(c *cli.Context) (key string, err error) {
	from := keyVariable
	switch key = strings.TrimSpace(os.Getenv(keyVariable)); {
	case !c.IsSet("api-key-file") && key == "":
		return "", nil
	case c.IsSet("api-key-file") && key != "":
		return "", usage("serve: --api-key-file and %s: give one of them", keyVariable)
	case c.IsSet("api-key-file"):
		from = "--api-key-file " + c.String("api-key-file")
		if key, err = endpoint.KeyFromFile(files(), c.String("api-key-file")); err != nil {
			return "", fault.As(fault.ErrUsage, err)
		}
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", usage("serve: %s: has a character that cannot be in a key: use letters, digits and signs of ASCII", from)
	}
	if len(key) < leastKey || len(key) > 1024 {
		return "", usage("serve: %s: has %s: a key must have %d to 1024", from,
			report.Count(len(key), "character"), leastKey)
	}
	return key, nil
}

// serve loads the model and answers requests until a signal.
func (p *program) serve(c *cli.Context, o serve.Options) error {
	con := p.console()
	defer con.Close()
	// an address in use is an error before the model is loaded, and another program cannot take it
	// meanwhile; who connects early waits until the model is loaded
	listener, err := serve.Listen(c.String("listen"))
	if err != nil {
		return cannotListen(c, err)
	}
	defer listener.Close()
	m, err := p.session().Load(sourceOf(c, "model"), model.LM)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := session.CheckChunks("serve", m, o.Chunks); err != nil {
		return err
	}
	o.Log = con.Print
	if o.Context > m.Config().MaxPosition {
		return usage("serve: --context %d: the model takes %d tokens: lower it", o.Context,
			m.Config().MaxPosition)
	}
	if most := m.Config().MaxPosition; c.IsSet("max-tokens") && most > 0 && o.Answer >= most &&
		!o.Chunks.On() {
		return usage("serve: --max-tokens %d: the model takes %s with the prompt: lower it",
			o.Answer, report.Count(most, "token"))
	}
	var s *serve.Server
	var address string
	weights, _ := m.Backend.Memory()
	o.Ready = func() {
		all, _ := m.Backend.Memory()
		fmt.Fprintf(p.out, "memory: %.3g GB of weights, up to %.3g GB for keys and values (--cache-tokens %d), which fills as requests come\n", float64(weights)/1e9, float64(all-weights)/1e9, s.CacheTokens())
		if m.Config().Stateful() && !o.Forget {
			fmt.Fprintln(p.out,
				"no prefix cache: layers of this model keep a state of each sequence, so every prompt is computed anew")
		}
		fmt.Fprintf(p.out, "serving %s on http://%s/v1\n", o.Name, address)
	}
	if s, err = serve.New(m.Model, m.Tokenizer, o); err != nil {
		return fault.As(fault.ErrUsage, err)
	}
	address = listener.Addr().String()
	ctx, end := p.session().Stoppable(func() string {
		return fmt.Sprintf(
			"stopping: requests under way have %v to end; a second Ctrl-C stops at once", o.Grace)
	}, func() string { return "requests were cut off" })
	defer end()
	if err := s.Serve(ctx, listener); err != nil {
		if errors.Is(err, model.ErrMemory) {
			err = fmt.Errorf("%w: lower --slots, --context or --cache-tokens", err)
		}
		return fault.As(fault.ErrRunning, err)
	}
	return nil
}

// cannotListen returns the error of a --listen address that is not available.
func cannotListen(c *cli.Context, err error) error {
	address := c.String("listen")
	if port := address[strings.LastIndex(address, ":")+1:]; !isPort(port) {
		return usage("serve: --listen %s: port %s: must be from 0 to 65535", address, port)
	}
	return usage("serve: --listen %s: %v: choose another port", address, errors.Unwrap(err))
}

// isPort reports whether text is a port's number.
func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}
