package chat

import (
	"errors"

	"gad/model"
)

// speaker answers with one engine for the whole conversation, whose cache keeps the earlier turns:
// a turn computes only its new tokens.
type speaker struct {
	m       *model.Model
	engine  *model.Engine // nil until the first answer
	longest int           // most tokens of a conversation in the engine
}

const (
	chatPage = 16      // tokens
	chatRoom = 1 << 12 // tokens of the first cache, at most the model's context
)

// answer answers a request; ended is false if Gone stopped it.
func (s *speaker) answer(r *model.Request) (answer model.Completion, ended bool, err error) {
	need, told := len(r.Prompt)+r.MaxNew, false
	if r.Chunks.On() {
		need = len(r.Prompt) + min(r.MaxNew, r.Chunks.Size)
	}
	token := r.Token
	r.Token = func(sample int, t model.Token) bool { told = true; return token(sample, t) }
	r.Done = func(_ int, c model.Completion) { answer, ended = c, true }
	try := func(room int) (err error) {
		if s.engine == nil || s.longest < room {
			if err = s.open(room); err != nil {
				return err
			}
		}
		if err = s.engine.Submit(r); err != nil {
			return err
		}
		for !s.engine.Idle() && err == nil {
			err = s.engine.Step()
		}
		if err != nil { // an engine is unusable after an error
			s.close()
		}
		return err
	}
	// A growing conversation is computed anew each time that its length doubles.
	room := need
	if s.longest < need {
		room = min(max(2*need, chatRoom), s.m.Config().MaxPosition)
	}
	if err = try(room); errors.Is(err, model.ErrMemory) && !told {
		err = try(need) // the least room for this answer
	}
	return answer, ended, err
}

// open creates an engine with room for so many tokens.
func (s *speaker) open(longest int) (err error) {
	s.close()
	o := model.EngineOptions{Slots: 1, PageTokens: chatPage, Longest: longest,
		Pages: (longest+chatPage-1)/chatPage + 1, Keep: true}
	if s.engine, err = s.m.NewEngine(o); err == nil {
		s.longest = longest
	}
	return err
}

// close frees the engine.
func (s *speaker) close() {
	if s.engine != nil {
		s.engine.Close()
	}
	s.engine, s.longest = nil, 0
}
