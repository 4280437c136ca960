"""`lacli bench`: modes beside plain decoding, on prompts of many kinds, as numbers that can be trusted.

`tasks` and `suites` are what is asked, `sweep` what competes, `rounds` the timed answers, `results` what they add up
to, `rows` and `report` how that is shown; `product` puts them together.
"""
