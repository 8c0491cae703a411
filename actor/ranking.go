package actor

import (
	"fmt"

	"gad/algos"
	"gad/model"
)

// Ranked holds scored answers. Answers of one group have the same prompt and are adjacent.
type Ranked struct {
	Seqs  []model.Seq // [S]
	Score []float64   // [S]
	Group []int       // [S] from 0
}

// RankStats describes a ranking update, taken before its optimizer step.
type RankStats struct {
	JointStats
	Loss  float64
	Agree float64 // share of the groups whose likeliest answer has the highest score
}

// Rank takes one optimizer step of algos.Ranking on all groups.
func (a *Actor) Rank(r Ranked, tau float64) (st RankStats, err error) {
	n := len(r.Seqs)
	if n == 0 || len(r.Score) != n || len(r.Group) != n {
		return st, fmt.Errorf("actor: ranking: %d answers, %d scores, %d group indices: must be equally many, and at least one", n, len(r.Score), len(r.Group))
	}
	u := &jointUpdate{seqs: r.Seqs, unit: r.Group, units: r.Group[n-1] + 1}
	u.compare = func(sumS []float64) (seedS []float64, err error) {
		st.Loss, seedS, err = algos.Ranking(sumS, r.Score, r.Group, tau)
		st.Agree = agree(sumS, r)
		return seedS, err
	}
	st.JointStats, err = a.learnJointly(u)
	return st, err
}

// agree returns the share of groups whose likeliest answer has the highest score (RankStats.Agree).
func agree(sumS []float64, r Ranked) float64 {
	groups, agreed := 0, 0
	for lo := 0; lo < len(sumS); groups++ {
		likeliest, best := lo, lo
		hi := lo
		for ; hi < len(sumS) && r.Group[hi] == r.Group[lo]; hi++ {
			if sumS[hi] > sumS[likeliest] {
				likeliest = hi
			}
			if r.Score[hi] > r.Score[best] {
				best = hi
			}
		}
		if r.Score[likeliest] == r.Score[best] {
			agreed++
		}
		lo = hi
	}
	return float64(agreed) / float64(groups)
}
