"""Whatever a Writer acknowledges can be published: the checks of publication, before an episode is taken."""
