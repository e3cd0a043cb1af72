"""Sentences of docs/typed-answers.md: each is the matter of a test."""

from __future__ import annotations

from tests.support.page_sentences import defined_tests, sentences
from tests.support.repository_rules import ROOT

PAGE = ROOT / "docs" / "typed-answers.md"
TESTED = {
    "`--schema` asks for answers that match a JSON schema": "test_typed_answers_become_columns",
    "The commands run as they stand": "test_a_page_runs",
    "The columns are `package`": "test_a_page_runs",
    "In Parquet they have the types of the schema": "test_types_of_typed_answers",
    "`--schema` also takes": "test_a_python_type_as_schema",
    "The type checks each answer by its own code": "test_an_answer_has_the_form_that_its_type_gives_it",
    "Below, a validator accepts": "test_a_page_runs",
    "pydantic checks a type that belongs to it": "test_an_answer_that_its_type_refuses_is_malformed_with_the_reason",
    "A type that mixes both is refused": "test_a_type_whose_rules_would_not_run_is_refused",
    "A struct of msgspec with fields of other classes": "test_an_answer_has_the_form_that_its_type_gives_it",
    "A value that its column cannot hold": "test_an_answer_that_its_type_refuses_is_malformed_with_the_reason",
    "Another exception of the type's code": "test_an_error_of_the_types_own_code_fails_its_row_and_is_not_paid_again",
    "A validator must depend on the answer alone": "test_a_job_that_was_killed_goes_on_with_its_type",
    "A job whose type has changed": "test_a_type_or_a_module_beside_it_that_has_changed_makes_another_job",
    "or the version of the library": "test_the_source_of_a_type_and_the_version_of_its_library_count",
    "Without its type a job cannot go on": "test_results_are_read_without_the_type_and_rows_asked_again_with_it_only",
    "if the job has ended, has no shards": "test_results_of_shards_need_the_type",
    "the files of the type are sent along": "test_a_package_of_a_command_holds_the_type_and_what_it_imports",
    "On a Ray cluster": "test_a_type_in_a_file_is_brought_to_a_machine_that_has_not_the_file",
    "is sent by its code": "test_types_of_a_prompt_and_of_a_script_check_answers_on_a_cluster",
    "its job can go on there only": "test_a_type_of_a_notebook_or_of_standard_input_is_known_there_only",
    "An answer that does not match the schema is discarded": "test_a_model_that_will_not_fit_is_told_why_and_asked_once_more",
    "If the second answer does not match": "test_an_answer_that_never_fits_is_a_failed_row_with_its_text",
    "An answer that was cut": "test_with_a_schema_a_cut_answer_is_cut_unless_nothing_of_it_is_missing",
    "is asked again only with": "test_with_a_schema_a_cut_answer_is_asked_again_with_longer",
    "Here each is cut": "test_a_page_runs",
    "asks these rows again": "test_a_cut_answer_fails_its_row_and_is_asked_again_alone",
    "With `prompt`, the one JSON object": "test_the_one_object_of_an_answer_in_words_is_taken",
    "An answer to a JSON schema is checked by all rules": "test_the_verdict_of_jsonschema",
    "references that lead out of the schema": "test_the_page_lists_what_is_refused_and_what_describes",
    "a `format` other than": "test_texts_by_their_rfc",
    "A Python type may have any format": "test_a_type_with_formats_is_checked_by_itself_and_has_its_columns",
    "describe only": "test_a_describing_keyword_says_nothing_of_validity",
    "An integer may be written `3.0`": "test_a_number_with_a_zero_fraction_is_an_integer",
    "The top of the schema must be an object": "test_what_is_no_schema_to_check_by",
    "`--logprobs` adds a column": "test_in_each_format_and_over_http_as_in_process",
    "The request asks for the log probability": "test_the_request_asks_for_them_in_the_words_of_openai",
    "The probability of a value is computed": "test_the_probability_of_a_choice",
    "what the lists do not show counts against": "test_a_list_that_ends_early_never_makes_an_answer_certain",
    "Without lists": "test_the_probability_of_a_choice",
    "Without `--schema` the column is": "test_a_text_answer_has_the_probability_of_its_tokens",
    "A cell is empty where nothing is told": "test_the_fields_of_an_answer",
    "Log probabilities are had over chat completions": "test_what_servers_give",
    "with `--schema-as tool` or `--via batches`": "test_refused_in_one_line_before_anything_is_paid",
    "What a probability means is the server's affair": "test_what_servers_give",
    "A reply keeps its log probabilities": "test_what_servers_give",
    "A question that was answered without them": "test_a_question_with_log_probabilities_is_another_question",
    "The simulated provider makes them up": "test_the_formula_gets_the_shares_back",
    "`--votes N` asks each row up to N times": "test_rows_are_asked_until_the_votes_that_are_left_change_nothing",
    "Votes are on the choices of the schema": "test_several_fields_are_one_answer",
    "By default the answer of most votes wins": "test_all_votes_are_asked_where_they_disagree_and_of_equals_the_first_wins",
    "With `--votes-by probability`": "test_by_probability_one_sure_vote_outweighs_two_that_are_not",
    "An answer that no vote gave never wins": "test_the_winner",
    "With `--logprobs` the column": "test_by_probability_one_sure_vote_outweighs_two_that_are_not",
    "A vote without log probabilities counts whole": "test_a_vote_without_probabilities_counts_whole",
    "A vote whose answer does not match": "test_each_vote_is_told_once_why_it_did_not_fit_and_the_next_one_is_not",
    "All votes are paid, and remembered": "test_votes_on_each_row_by_count_and_by_probability",
    "checks an answer by the type as well": "test_a_dataclass_of_pydantic_is_checked_by_its_validators",
    "It asks by structured outputs where they are certain":
        "test_structured_outputs_are_certain_for_some_models_at_their_providers_own_hosts",
    "Structured outputs do not express maps": "test_a_schema_is_expressed_if_its_answers_are_the_same",
    "Everywhere else, for what they do not express": "test_what_structured_outputs_do_not_express_is_asked_for_in_words",
    "A `Conversation` and a model object are asked in words": "test_a_conversation_is_asked_in_words",
    "A job that began in words": "test_a_flow_that_began_in_words_goes_on_in_words_and_pays_no_answer_again",
}  # fmt: skip
"""Part of a sentence -> test."""


def test_each_sentence_has_its_test() -> None:
    found = sentences(PAGE)
    assert [each for each in found if not any(part in each for part in TESTED)] == []
    assert [part for part in TESTED if not any(part in each for each in found)] == []


def test_each_of_these_tests_exists() -> None:
    assert sorted(set(TESTED.values()) - defined_tests()) == []
